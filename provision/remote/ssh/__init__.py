"""SSH connections of our own: the only home of paramiko."""
