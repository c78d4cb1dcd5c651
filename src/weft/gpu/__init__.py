"""Execution on CUDA and HIP devices."""
