"""Provisioning of a fleet: plan, waves, health gate, resume and result."""
