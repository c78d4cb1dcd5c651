"""CPU tensors in ``torch.distributed._symmetric_memory``."""
