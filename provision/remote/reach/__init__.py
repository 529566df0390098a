"""Reaching nodes whichever way: over SSH, by Ansible, or by a worker machine that has them."""
