"""Plays of check programs on nodes: for one check, for several nodes together, for an MPI launch."""
