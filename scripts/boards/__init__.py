"""The Grafana dashboards, one file each; `scripts/dashboards.py` writes them as JSON."""
