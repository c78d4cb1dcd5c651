"""Models as data: generators of their steps, and importers of other programs' configurations."""
