"""Remote execution on many nodes: over SSH, through Ansible, or by workers."""
