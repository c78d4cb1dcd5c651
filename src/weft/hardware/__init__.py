"""Hardware as data: devices, links and nodes, each number with its source.

``platform("mi300x-8")`` finds a machine of the catalogue, ``mi300x-8x16`` a cluster of it,
``machine.toml`` a file, and ``switch(8)@400GiB/s,936ns`` a bare network.
"""

from weft.hardware.device import Cores, Device, Dma, Flops, Kernels, Lookups, Power, WorkingSet
from weft.hardware.files import (
    device_names,
    find_device,
    here_path,
    is_calibrated,
    platform,
    platform_from_table,
    platform_names,
)
from weft.hardware.machine import Machine, cache_bytes, this_machine
from weft.hardware.network import Level, LevelKind, format_network, parse_network
from weft.hardware.platform import Entry, Host, Nic, Platform
from weft.hardware.quantity import BASES, Source

__all__ = [
    "BASES",
    "Cores",
    "Device",
    "Dma",
    "Entry",
    "Flops",
    "Host",
    "Kernels",
    "Level",
    "LevelKind",
    "Lookups",
    "Machine",
    "Nic",
    "Platform",
    "Power",
    "Source",
    "WorkingSet",
    "cache_bytes",
    "device_names",
    "find_device",
    "format_network",
    "here_path",
    "is_calibrated",
    "parse_network",
    "platform",
    "platform_from_table",
    "platform_names",
    "this_machine",
]
