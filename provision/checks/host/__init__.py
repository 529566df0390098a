"""Checks of the host around the GPUs."""
