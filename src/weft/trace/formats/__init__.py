"""Readers of trace files: one module for each format, and how a file's format is found."""
