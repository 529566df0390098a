"""Checks of the GPUs of one node."""
