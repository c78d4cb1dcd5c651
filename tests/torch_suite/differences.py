"""What weft does otherwise than Gloo in PyTorch's distributed tests, and why."""

# Tests that Gloo passes and weft does not, by name. docs/torch-suite.md shows the same table.
DIFFERENCES: dict[str, str] = {}
