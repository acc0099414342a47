"""The paper: its tables and figures by name, and its theorems checked on measured runs. Nothing imports this."""
