"""Linear layers over the ranks of a group, fused with the collectives around them."""
