"""Embedding tables sharded over the ranks of a group, fused with their all-to-all."""
