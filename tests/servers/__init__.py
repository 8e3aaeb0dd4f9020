"""Real servers, started for tests and benchmarks from packages that carry their binaries."""
