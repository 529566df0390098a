"""What plays programs on nodes: of one check, of several nodes together, of an MPI launch."""
