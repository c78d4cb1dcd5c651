"""Runs on this machine that ``weft tour`` and ``weft c3 --run`` measure: teams of ranks in turn."""
