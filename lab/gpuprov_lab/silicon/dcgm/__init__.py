"""The simulated DCGM: its host engine, and the exporter that reads it for Prometheus."""
