"""What a reader of plain inventories says of an inventory that is not plain."""

from __future__ import annotations


class NotPlainError(Exception):
    """The reason; whoever catches it asks Ansible, which understands more and says what is wrong better."""
