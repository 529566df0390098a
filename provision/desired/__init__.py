"""What should be true of each node: variables, stacks, roles and what they promise."""
