"""Current state of nodes in service."""
