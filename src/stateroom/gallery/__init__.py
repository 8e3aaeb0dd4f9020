"""Complete environments, each with its tasks, scripted policies and a README."""
