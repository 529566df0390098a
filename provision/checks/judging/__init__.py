"""From raw output to the health of a node: the table of checks, and what judges with all of them."""
