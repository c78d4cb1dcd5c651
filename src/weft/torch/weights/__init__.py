"""Versioned updates of the weights of many receivers: only what changed is sent."""
