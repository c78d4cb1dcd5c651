"""Reads a file in pieces of plain bytes, decompressed if needed, as far as possible."""

import queue
import threading
import zlib
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from weft.errors import FormatError

_PIECE = 1 << 20  # bytes read at once: small compared with any trace, large compared with a call
_GZIP = b"\x1f\x8b"
_AHEAD = 4  # pieces that may be queued for their reader
_HEAD = 1 << 16  # bytes that identify a format


@dataclass(slots=True)
class FilePieces:
    """The content of a file, decompressed; ``lost`` says what could not be read, at the end.

    >>> import gzip, tempfile
    >>> with tempfile.NamedTemporaryFile(suffix=".gz") as file:
    ...     _ = file.write(gzip.compress(b"{}")[:-3])
    ...     file.flush()
    ...     pieces = FilePieces(Path(file.name))
    ...     (b"".join(pieces), pieces.lost)
    (b'{}', 'the compressed file is truncated')
    """

    path: Path
    lost: str = field(default="", init=False)

    def __iter__(self) -> Iterator[bytes]:
        """Yield pieces; decompression continues in a thread while the caller reads."""
        try:
            if not self.path.is_dir() and self.path.exists() and not self.path.is_file():
                raise FormatError(
                    f"{str(self.path)!r} is a pipe or a device, but traces are read twice",
                    "Write it to a file first.",
                )
            with self.path.open("rb") as file:
                is_packed = file.read(len(_GZIP)) == _GZIP
        except OSError as error:
            raise FormatError(
                f"cannot read {str(self.path)!r}: {error.strerror}",
                "Name traces, folders, quoted globs or a .zip, such as rank*.json.gz.",
            ) from None
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
                while not ready.empty():
                    ready.get()
                thread.join(0.01)

    def _fill(self, ready: "queue.Queue[bytes | None]", stop: threading.Event) -> None:
        try:
            for piece in self._unpacked():
                ready.put(piece)
                if stop.is_set():
                    return
        except OSError as error:
            self.lost = f"cannot read the compressed file to its end ({error.strerror})"
        finally:
            ready.put(None)

    def _unpacked(self) -> Iterator[bytes]:
        """Decompress member after member: a gzip file may contain several."""
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
            self.lost = "the compressed file is truncated"


def head_of(path: Path) -> bytes:
    """Return the first bytes of a file, decompressed: enough to identify its format."""
    out = b""
    for piece in FilePieces(path):
        out += piece
        if len(out) >= _HEAD:
            break
    return out[:_HEAD]
