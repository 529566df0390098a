"""Use cases of gpuprov as functions, for the command line and for any other program.

They take dataclasses, report events, and return results with documents; they neither print nor prompt, and
choose no exit code."""
