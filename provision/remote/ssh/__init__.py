"""Our own SSH connections; the only package that imports paramiko."""
