"""The table of checks, and the judges that turn raw output into the health of a node."""
