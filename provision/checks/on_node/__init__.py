"""The node's health program, gpuprov-node-health: the passive checks of `validate`, run on the node by
itself.

It runs with Python 3.9 and the standard library alone; packed_program.py packs it. What it writes is
described in docs/health.md.
"""
