"""The node's health program, gpuprov-node-health, which runs the passive checks of `validate`.

It runs on the node and needs only Python 3.9 and the standard library; packed_program.py packs it.
docs/health.md describes its output.
"""
