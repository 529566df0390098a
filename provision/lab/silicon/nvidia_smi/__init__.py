"""The simulated nvidia-smi."""
