"""Measurement of nodes and judgement of the results, for single nodes, pairs and groups."""
