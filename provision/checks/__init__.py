"""Checks of nodes and GPUs; each check is one module, registered by one line in table.py."""
