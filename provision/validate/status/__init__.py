"""Nodes in service: their state now."""
