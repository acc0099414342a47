"""Reports: finished runs as tables and figures. Nothing here trains."""
