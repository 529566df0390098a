"""Lines that the driver of one vendor writes."""
