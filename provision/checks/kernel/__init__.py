"""Kernel log: parsing of its lines, their meaning, and findings from a node's lines together."""
