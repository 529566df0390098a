"""The simulated NVIDIA container toolkit."""
