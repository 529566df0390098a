"""Access to nodes by any route: over SSH, through Ansible, or by a worker."""
