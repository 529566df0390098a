"""The faults that the lab can plant, and their parameters."""
