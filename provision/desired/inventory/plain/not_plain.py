"""The exception for an inventory that the plain reader cannot read; Ansible then reads it."""

from __future__ import annotations


class NotPlainError(Exception):
    """The reason; whoever catches it asks Ansible, which understands more and says what is wrong better."""
