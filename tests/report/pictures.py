"""Pictures made by hand, and read back as the script of a page reads them."""

import numpy as np

from weft.report.packing import unpack
from weft.report.picture import Picture, PictureLine


def drawn(spans, *, of=None, **options):
    """``spans`` are (line, name, start, end) in seconds."""
    line, name, start, end = (np.array(column) for column in zip(*spans, strict=True))
    size = len(spans)
    columns = {
        "kind": np.zeros(size, np.int64),
        "waits": np.zeros(size),
        "nbytes": np.zeros(size, np.int64),
    }
    return Picture(
        of or [PictureLine("rank 0", f"stream {i}") for i in range(3)],
        [f"name {i}" for i in range(10)],
        line.astype(np.int64),
        name.astype(np.int64),
        start=start.astype(float),
        end=end.astype(float),
        **columns | options,
    )


def unpacked(data):
    """Read a picture as the script of the page does: (line, name, start, end) in nanoseconds."""
    gap, length, label = (unpack(data[key]) for key in ("gap", "length", "label"))
    spans, at = [], 0
    for line, count in zip(data["rows"], data["counts"], strict=True):
        time = 0
        for i in range(at, at + count):
            start = time + gap[i]
            time = start + length[i]
            spans.append((line, data["labels"][label[i]][0], start, time))
        at += count
    return spans
