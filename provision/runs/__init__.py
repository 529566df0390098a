"""Run folders: the data that a run stores, its readers, and the results of earlier runs."""
