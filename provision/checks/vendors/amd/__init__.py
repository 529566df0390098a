"""What there is for AMD's GPUs."""
