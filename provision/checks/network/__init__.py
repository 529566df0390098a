"""Checks of the RDMA ports of one node."""
