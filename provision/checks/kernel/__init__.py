"""The kernel's log: how its lines are read, what they mean, and what a node's lines together say."""
