"""Proof on one real machine: runs every check, keeps the raw output, and provokes known conditions.

run.py is the order of it; machine.py and tools.py look at what is here; measure.py runs checks;
provocations.py and changes.py make conditions that a check must name; compare.py and shapes.py hold what the
tools print against the simulator; archive.py keeps it all, with what identifies a machine masked by
serials.py where that is asked for; signals.py ends it in order, page.py and summary.py show it.
"""
