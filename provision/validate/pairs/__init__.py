"""Measurements between two or more nodes."""
