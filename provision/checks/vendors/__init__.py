"""The vendors whose GPUs are checked, a package each."""
