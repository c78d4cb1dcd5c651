"""Counts lines in every Python process that inherits this path: ranks, workers, command lines."""

import coverage

coverage.process_startup()
