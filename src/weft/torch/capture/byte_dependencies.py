"""Dependencies of ops by the bytes that they read and write.

Bytes are compared by the range of a storage that a tensor spans, so that slices of one buffer
(chunks of a pipeline, halves of a double buffer, rows of a halo exchange) do not wait for each
other. Tensors whose elements interleave, such as columns, count as overlapping.
"""

from __future__ import annotations

from collections.abc import Iterable

import torch

from weft.torch.capture.captured_streams import Front, merge

Range = tuple[int, int]  # the first byte, and the one after the last


class ByteDependencies:
    """The ops that last wrote and read each range of each storage."""

    def __init__(self) -> None:
        self._writers: dict[int, dict[Range, tuple[str, int]]] = {}
        self._readers: dict[int, dict[Range, Front]] = {}  # since the range was written

    def forget(self, storage: int) -> None:
        """Drop a storage that was freed."""
        self._writers.pop(storage, None)
        self._readers.pop(storage, None)

    def clear(self) -> None:
        """Drop everything: all ops so far are done."""
        self._writers.clear()
        self._readers.clear()

    def writers(self, tensor: torch.Tensor) -> Front:
        """Return the ops that wrote what a tensor spans."""
        found: Front = {}
        span = span_of(tensor)
        for other, (stream, number) in self._writers.get(storage_of(tensor), {}).items():
            if overlap(span, other):
                merge(found, {stream: number})
        return found

    def add(
        self,
        stream: str,
        number: int,
        inputs: Iterable[torch.Tensor],
        written: Iterable[torch.Tensor],
        *,
        before: int,
    ) -> Front:
        """Record what an op reads and writes; return the ops that it has to wait for.

        Only ops ``before`` a number count: messages of one batch do not wait for each other.
        """
        needs: Front = {}
        reads = {(storage_of(tensor), span_of(tensor)) for tensor in inputs}
        writes = {(storage_of(tensor), span_of(tensor)) for tensor in written}
        for storage, span in reads | writes:
            for other, (writer, earlier) in self._writers.get(storage, {}).items():
                if earlier < before and overlap(span, other):
                    merge(needs, {writer: earlier})
        for storage, span in writes:
            readers = self._readers.get(storage, {})
            for other in [each for each in readers if overlap(span, each)]:
                merge(needs, {s: n for s, n in readers[other].items() if n < before})
                if span[0] <= other[0] and other[1] <= span[1]:
                    del readers[other]
            writers = self._writers.setdefault(storage, {})
            for other in [each for each in writers if span[0] <= each[0] and each[1] <= span[1]]:
                del writers[other]
            writers[span] = stream, number
        for storage, span in reads:
            self._readers.setdefault(storage, {}).setdefault(span, {})[stream] = number
        return needs


def storage_of(tensor: torch.Tensor) -> int:
    """Return the address of a tensor's storage, which its views share."""
    return int(tensor.untyped_storage()._cdata)  # noqa: SLF001


def span_of(tensor: torch.Tensor) -> Range:
    """Return the bytes of its storage from a tensor's first element to its last."""
    itemsize, first = tensor.element_size(), int(tensor.storage_offset())
    if tensor.is_contiguous():
        count = int(tensor.numel())
    else:
        shown = zip(tensor.shape, tensor.stride(), strict=True)
        steps = sum((int(size) - 1) * int(stride) for size, stride in shown)
        count = 1 + steps if tensor.numel() else 0
    return first * itemsize, (first + count) * itemsize


def overlap(span: Range, other: Range) -> bool:
    """Return whether two ranges have bytes in common."""
    return span[0] < other[1] and other[0] < span[1]
