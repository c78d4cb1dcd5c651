"""``weft gpu-check``: facts, correctness, calibration, paths and predictions of one node."""
