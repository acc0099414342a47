"""A Flower federation on one machine: a SuperLink and SuperNodes as processes on loopback."""
