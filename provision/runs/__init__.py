"""The run folder: what a run stores, who reads it, and what earlier runs have shown."""
