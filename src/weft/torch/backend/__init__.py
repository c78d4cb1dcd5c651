"""The backend ``weft`` of torch.distributed: process group, channel, works and messages."""
