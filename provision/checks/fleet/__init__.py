"""Comparison of nodes with each other (pure)."""
