"""Judging nodes against each other (pure)."""
