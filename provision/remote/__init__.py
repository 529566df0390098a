"""Running something on many nodes: over SSH, through Ansible, or by worker machines."""
