"""Ansible as a library; the only package that imports ansible_runner."""
