"""The use cases of gpuprov as functions: the command line calls them, and so can any program.

They take dataclasses, report events, and return results with documents; they print nothing, ask nobody and
choose no exit code."""
