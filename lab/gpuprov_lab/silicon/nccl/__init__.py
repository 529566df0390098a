"""The simulated nccl-tests."""
