"""Measuring nodes and judging them: campaigns on nodes, and on pairs and groups of nodes."""
