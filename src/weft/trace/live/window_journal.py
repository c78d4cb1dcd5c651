"""The journal of a running job: one window a line, which ``weft watch`` follows."""

import os
import tempfile
from collections.abc import Iterator
from pathlib import Path

import msgspec

from weft.errors import FormatError
from weft.trace.live.job_window import JobWindow

_SUFFIX = ".monitor.jsonl"


def journal_folder() -> Path:
    """Return the folder of the journals of this user's jobs on this host."""
    return Path(tempfile.gettempdir()) / f"weft-monitor-{os.getuid()}"


def new_journal() -> Path:
    """Return the path of the journal of a job that starts now."""
    folder = journal_folder()
    folder.mkdir(mode=0o700, exist_ok=True)
    return folder / f"{os.getpid()}{_SUFFIX}"


def newest_journal() -> Path:
    """Return the journal that was written to last."""
    found = sorted(journal_folder().glob(f"*{_SUFFIX}"), key=lambda path: path.stat().st_mtime)
    if not found:
        raise FormatError(
            "no monitored job on this host",
            "Call weft.torch.monitor() on every rank of the job, or name its journal.",
        )
    return found[-1]


def append_window(path: Path, window: JobWindow) -> None:
    """Append a window to a journal."""
    with path.open("ab") as file:
        file.write(msgspec.json.encode(window) + b"\n")


class JournalReader:
    """Reads the windows of a journal as they are appended; a line that is not complete waits."""

    def __init__(self, path: Path) -> None:
        self.path, self._at = path, 0

    def new(self) -> Iterator[JobWindow]:
        """Yield the windows since the last call."""
        try:
            with self.path.open("rb") as file:
                file.seek(self._at)
                lines = file.read().splitlines(keepends=True)
        except OSError as error:
            raise FormatError(f"cannot read {str(self.path)!r}: {error.strerror}") from None
        for line in lines:
            if not line.endswith(b"\n"):
                if not line.startswith(b"{"):
                    raise FormatError(f"{str(self.path)!r} is not a journal of weft.torch.monitor")
                return
            self._at += len(line)
            try:
                yield msgspec.json.decode(line, type=JobWindow)
            except msgspec.DecodeError as error:
                raise FormatError(
                    f"{str(self.path)!r} is not a journal of weft.torch.monitor: {error}"
                ) from None
