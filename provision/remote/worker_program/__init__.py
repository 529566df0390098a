"""What a worker machine runs."""
