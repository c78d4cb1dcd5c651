"""Reports from inside a job: stamps of its collectives, and the overlap of its profiles."""
