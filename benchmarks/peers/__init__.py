"""The contenders: one file each, named after what it runs. All check the same expectations."""
