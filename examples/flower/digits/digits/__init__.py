"""Handwritten digits on a few nodes."""
