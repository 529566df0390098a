"""Checks with NCCL and PyTorch on one node."""
