"""Proof on one real machine: runs every check, keeps the raw output, and provokes known conditions.

run.py is the order of it; machine.py looks at what is here; measure.py runs checks;
provocations.py and changes.py make conditions that a check must name; the archive of measure.py keeps it all,
with what identifies a machine masked by serials.py where that is asked for; signals.py ends it in order,
result.py shows it.
"""
