"""Capture of one training or inference step of torch code as a Workload, on fake tensors."""
