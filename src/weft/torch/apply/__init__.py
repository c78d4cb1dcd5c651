"""Execution of a plan in a running torch job."""
