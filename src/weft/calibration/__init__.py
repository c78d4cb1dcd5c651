"""Measurement of this machine, and the platform ``here`` that results from it."""
