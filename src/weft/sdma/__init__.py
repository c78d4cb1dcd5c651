"""Copy queues as packets of SDMA, the DMA engines of AMD GPUs, and a software engine for them.

The packets are byte for byte those of the open headers of AMD's driver and runtime. Nothing here
touches hardware: the software engine carries packets out on arrays, which shows what they mean.
"""

from weft.sdma.engine import Engine, Memory
from weft.sdma.lower import Batch, Lowering, lower
from weft.sdma.packets import Packet
from weft.sdma.ring import Ring
from weft.sdma.words import decode, encode

__all__ = [
    "Batch",
    "Engine",
    "Lowering",
    "Memory",
    "Packet",
    "Ring",
    "decode",
    "encode",
    "lower",
]
