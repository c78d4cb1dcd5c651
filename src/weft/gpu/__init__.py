"""Execution on GPUs: packets of their copy engines (``sdma``)."""
