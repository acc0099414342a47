"""Many nodes with drawn data."""
