"""Checks of nodes and GPUs: a check is one module here, and one line in table.py."""
