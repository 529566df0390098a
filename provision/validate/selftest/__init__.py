"""Proof on one real machine: run every check, keep the raw output, and provoke known conditions.

run.py orders the steps; machine.py observes this machine; measure.py runs checks and keeps the archive;
provocations.py and changes.py create conditions that a check must name; serials.py masks, on request, what
identifies a machine; signals.py ends the selftest cleanly; result.py renders the result.
"""
