"""Burn-in: hours of load that survive a lost controller, and the record of acceptance."""
