"""Kernel log lines of each vendor's driver."""
