"""Which choice is best: predict, compare, explain."""
