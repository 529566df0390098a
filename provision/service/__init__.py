"""Nodes in service: the health program that each of them runs, and the state of the fleet from what it
writes."""
