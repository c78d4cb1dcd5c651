"""Resharding of tensors from one mesh of ranks to another."""
