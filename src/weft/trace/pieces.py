"""A file as pieces of plain bytes, packed or not, as far as it can be read."""

import queue
import threading
import zlib
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from weft.errors import FormatError

_PIECE = 1 << 20  # bytes read at once: small beside any trace, large beside a call
_GZIP = b"\x1f\x8b"
_AHEAD = 4  # pieces that may wait for their reader
_HEAD = 1 << 16  # bytes that tell a format


@dataclass(slots=True)
class Pieces:
    """What a file holds, unpacked; ``lost`` says what could not be, once all was read.

    >>> import gzip, tempfile
    >>> with tempfile.NamedTemporaryFile(suffix=".gz") as file:
    ...     _ = file.write(gzip.compress(b"{}")[:-3])
    ...     file.flush()
    ...     pieces = Pieces(Path(file.name))
    ...     (b"".join(pieces), pieces.lost)
    (b'{}', 'the packed file is cut short')
    """

    path: Path
    lost: str = field(default="", init=False)

    def __iter__(self) -> Iterator[bytes]:
        """Yield pieces; unpacking goes on in a thread while the caller reads."""
        try:
            if not self.path.is_dir() and self.path.exists() and not self.path.is_file():
                raise FormatError(
                    f"{str(self.path)!r} is a pipe or a device, and traces are read twice",
                    "Write it into a file first.",
                )
            with self.path.open("rb") as file:
                is_packed = file.read(len(_GZIP)) == _GZIP
        except OSError as error:
            raise FormatError(f"cannot read {str(self.path)!r}: {error.strerror}") from None
        return self._ahead() if is_packed else self._plain()

    def _plain(self) -> Iterator[bytes]:
        with self.path.open("rb") as file:
            while piece := file.read(_PIECE):
                yield piece

    def _ahead(self) -> Iterator[bytes]:
        ready: queue.Queue[bytes | None] = queue.Queue(_AHEAD)
        stop = threading.Event()
        thread = threading.Thread(target=self._fill, args=(ready, stop), daemon=True)
        thread.start()
        try:
            while (piece := ready.get()) is not None:
                yield piece
        finally:
            stop.set()
            while thread.is_alive():
                _drain(ready)
                thread.join(0.01)

    def _fill(self, ready: "queue.Queue[bytes | None]", stop: threading.Event) -> None:
        try:
            for piece in self._unpacked():
                ready.put(piece)
                if stop.is_set():
                    return
        except OSError as error:
            self.lost = f"the packed file cannot be read to its end ({error.strerror})"
        finally:
            ready.put(None)

    def _unpacked(self) -> Iterator[bytes]:
        """Unpack member after member: a gzip file may be several, one behind the other."""
        unpack = zlib.decompressobj(zlib.MAX_WBITS | 16)
        with self.path.open("rb") as file:
            rest = b""
            while packed := rest or file.read(_PIECE >> 2):
                try:
                    yield unpack.decompress(packed, _PIECE)
                except zlib.error as error:
                    self.lost = f"the packed file is damaged ({error})"
                    return
                rest = unpack.unconsumed_tail
                if unpack.eof:
                    rest = (unpack.unused_data or file.read(_PIECE >> 2)).lstrip(b"\0")
                    if not rest:
                        return
                    unpack = zlib.decompressobj(zlib.MAX_WBITS | 16)
        yield unpack.flush()
        if not unpack.eof:
            self.lost = "the packed file is cut short"


def _drain(ready: "queue.Queue[bytes | None]") -> None:
    while not ready.empty():
        ready.get()


def head_of(path: Path) -> bytes:
    """Give the first bytes of a file, unpacked: enough to tell its format."""
    out = b""
    for piece in Pieces(path):
        out += piece
        if len(out) >= _HEAD:
            break
    return out[:_HEAD]
