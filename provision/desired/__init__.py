"""The desired state of each node: variables, stacks, roles and their promises."""
