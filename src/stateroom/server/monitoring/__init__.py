"""What a server tells of its work: figures for Prometheus, and traces."""
