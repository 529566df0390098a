"""Ansible as a library: the only home of ansible_runner."""
