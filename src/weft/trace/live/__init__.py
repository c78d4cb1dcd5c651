"""A running job: stamps of its collectives joined across ranks, and what is published of them."""
