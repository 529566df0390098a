"""The faults that the lab can inject, and their parameters."""
