"""What Ansible itself says: of an inventory, and of its configuration."""
