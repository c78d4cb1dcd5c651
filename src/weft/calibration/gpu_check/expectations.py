"""Checksums of what all ranks hold after each collective, by kind and number of ranks.

Computed once on the CPU (``collective_checks.checksum``) and stored, so that an error in
the formulas of a later version does not hide an error of a machine.
"""

CHECKSUMS: dict[tuple[str, int], int] = {
    ("all_reduce", 1): 0x23B10AB9,
    ("all_reduce", 2): 0x790B0D03,
    ("all_reduce", 4): 0x3894ADE5,
    ("all_reduce", 8): 0x47F57B15,
    ("all_gather", 1): 0x23B10AB9,
    ("all_gather", 2): 0xA1C1E9AD,
    ("all_gather", 4): 0x2380CE5E,
    ("all_gather", 8): 0x37627AE1,
    ("reduce_scatter", 1): 0x23B10AB9,
    ("reduce_scatter", 2): 0x83D20D74,
    ("reduce_scatter", 4): 0x6B85E1B8,
    ("reduce_scatter", 8): 0x9B4813FB,
    ("all_to_all", 1): 0x23B10AB9,
    ("all_to_all", 2): 0x53339FCB,
    ("all_to_all", 4): 0x2114BE6B,
    ("all_to_all", 8): 0xD379F08E,
    ("broadcast", 1): 0x23B10AB9,
    ("broadcast", 2): 0xC748ED05,
    ("broadcast", 4): 0xAE469763,
    ("broadcast", 8): 0x5BF685B6,
    ("send_recv", 1): 0x23B10AB9,
    ("send_recv", 2): 0xC73945C2,
    ("send_recv", 4): 0xEFF4E980,
    ("send_recv", 8): 0xF271C02C,
}
