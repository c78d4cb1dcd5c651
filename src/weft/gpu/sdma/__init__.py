"""Copy queues as packets of SDMA, the DMA engines of AMD GPUs, and a software engine for them.

The packets are byte for byte those of the open headers of AMD's driver and runtime. Nothing here
touches hardware: the software engine executes packets on arrays, which defines their meaning.
"""

from weft.gpu.sdma.lower import Lowering, PacketBatch, lower
from weft.gpu.sdma.packets import Packet
from weft.gpu.sdma.ring_buffer import RingBuffer
from weft.gpu.sdma.software_engine import AddressSpace, SdmaEngine
from weft.gpu.sdma.words import decode, encode

__all__ = [
    "AddressSpace",
    "Lowering",
    "Packet",
    "PacketBatch",
    "RingBuffer",
    "SdmaEngine",
    "decode",
    "encode",
    "lower",
]
