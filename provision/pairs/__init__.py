"""Pairs and groups of nodes: which to measure together, and who is to blame for what is slow (pure).

Begin with `suspects`: it names the culprits, and says in its head how the others serve it.
"""
