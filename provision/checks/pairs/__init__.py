"""Pairs and groups of nodes: which to measure together, and which part explains slow results (pure).

Begin with `suspects`: it names the culprits, and its docstring introduces the other modules.
"""
