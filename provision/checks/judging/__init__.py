"""Judging of raw output into node health: the table of checks and its users."""
