"""The tables of arXiv 2511.06605 (DMA-Latte), 8 MI300X. A size is that of the whole collective."""

from weft.units import parse_size

SOURCE = "arXiv 2511.06605"

# Shares of one copy between two devices, in percent: control, schedule, copy, sync.
PHASES: dict[int, tuple[float, ...]] = {
    parse_size(size): shares
    for size, shares in {
        "1KiB": (5, 31, 29, 35),
        "4KiB": (5, 30, 30, 36),
        "16KiB": (4, 30, 33, 33),
        "64KiB": (4, 23, 46, 27),
        "128KiB": (7, 20, 51, 22),
        "256KiB": (3, 17, 62, 18),
        "512KiB": (2, 13, 72, 13),
        "1MiB": (1, 10, 79, 10),
        "2MiB": (1, 5, 89, 5),
        "4MiB": (1, 3, 93, 3),
        "8MiB": (0, 1, 97, 1),
        "16MiB": (0, 1, 98, 1),
        "64MiB": (0, 0, 100, 0),
    }.items()
}

# Speed of all-gathers over the plain one, a copy for each peer.
VARIANTS = (
    "dma+prelaunch",
    "dma-bcst",
    "dma-bcst+prelaunch",
    "dma-b2b",
    "dma-b2b+prelaunch",
)
ALL_GATHER: dict[int, tuple[float, ...]] = {
    parse_size(size): speeds
    for size, speeds in {
        "1KiB": (2.87, 1.59, 3.67, 2.58, 4.10),
        "4KiB": (2.90, 1.64, 3.78, 2.59, 4.13),
        "16KiB": (3.17, 1.79, 4.10, 2.81, 4.47),
        "64KiB": (3.21, 1.76, 4.01, 2.84, 4.46),
        "128KiB": (3.48, 2.05, 4.52, 3.07, 4.58),
        "256KiB": (3.59, 2.00, 4.33, 2.64, 3.58),
        "1MiB": (3.22, 1.75, 2.93, 1.56, 1.84),
        "2MiB": (2.71, 1.44, 2.16, 1.00, 1.13),
        "4MiB": (2.29, 1.10, 1.23, 0.61, 0.65),
        "8MiB": (1.83, 0.81, 0.94, 0.39, 0.40),
        "16MiB": (1.54, 0.67, 0.75, 0.27, 0.27),
        "64MiB": (1.11, 0.46, 0.48, 0.17, 0.17),
        "256MiB": (1.03, 0.43, 0.44, 0.15, 0.15),
        "1GiB": (1.02, 0.43, 0.43, 0.15, 0.15),
    }.items()
}

# Milliseconds of 4096 copies (512 of the largest) from the host's memory through the runtime.
FETCHED = "vLLM pull request 40549, MI300X"
FETCHES = {
    ("per-copy", 4 << 10): 22.4,
    ("batched", 4 << 10): 10.5,
    ("per-copy", 8 << 10): 22.4,
    ("batched", 8 << 10): 10.6,
    ("per-copy", 32 << 10): 40.7,
    ("batched", 32 << 10): 40.9,
    ("per-copy", 128 << 10): 50.5,
    ("batched", 128 << 10): 50.5,
    ("per-copy", 512 << 10): 11.2,
    ("batched", 512 << 10): 11.3,
}
# Costs of a call were fitted to 4 and 32 KiB; where copies begin to wait for each other was chosen
# with both ways of 8 and 32 KiB in sight.
FITTED_FETCHES = tuple((way, n << 10) for way in ("per-copy", "batched") for n in (4, 8, 32))
