"""The journal of a running job: one window a line, which ``weft watch`` follows."""

import os
import stat
import tempfile
from collections.abc import Iterator
from pathlib import Path

import msgspec

from weft.errors import FormatError
from weft.trace.live.job_window import VERSION, JobWindow

_SUFFIX = ".monitor.jsonl"


def journal_folder() -> Path:
    """Return the folder of the journals of this user's jobs on this host."""
    return Path(tempfile.gettempdir()) / f"weft-monitor-{os.getuid()}"


def new_journal() -> Path:
    """Return the path of the journal of a job that starts now.

    Raises PermissionError if the folder is another user's, who could put links into it.
    """
    folder = journal_folder()
    folder.mkdir(mode=0o700, exist_ok=True)
    info = folder.lstat()
    if info.st_uid != os.getuid() or not stat.S_ISDIR(info.st_mode):
        raise PermissionError(f"{folder} is not a folder of this user")
    return folder / f"{os.getpid()}{_SUFFIX}"


def newest_journal() -> Path:
    """Return the journal that was written to last."""
    found = sorted(journal_folder().glob(f"*{_SUFFIX}"), key=_written)
    if not found:
        raise FormatError(
            "no monitored job on this host",
            "Call weft.torch.monitor() on every rank of the job, or name its journal.",
        )
    return found[-1]


def _written(path: Path) -> float:
    try:
        return path.stat().st_mtime
    except OSError:  # removed since it was listed
        return 0.0


def append_window(path: Path, window: JobWindow) -> None:
    """Append a window to a journal."""
    with path.open("ab") as file:
        file.write(msgspec.json.encode(window) + b"\n")


class JournalReader:
    """Reads the windows of a journal as they are appended; a line that is not complete waits.

    A journal that became shorter is that of a job that has started again: it is read from its
    beginning.
    """

    def __init__(self, path: Path) -> None:
        self.path, self._at = path, 0

    def new(self) -> Iterator[JobWindow]:
        """Yield the windows since the last call."""
        try:
            if not stat.S_ISREG(self.path.stat().st_mode):  # a pipe would be waited for
                raise self._no_journal("not a regular file")
            with self.path.open("rb") as file:
                if file.seek(0, os.SEEK_END) < self._at:
                    self._at = 0
                file.seek(self._at)
                lines = file.read().splitlines(keepends=True)
        except OSError as error:
            raise FormatError(f"cannot read {str(self.path)!r}: {error.strerror}") from None
        for line in lines:
            if not line.endswith(b"\n"):
                if not line.startswith(b"{"):
                    raise self._no_journal("expected a JSON object on each line")
                return
            self._at += len(line)
            try:
                window = msgspec.json.decode(line, type=JobWindow)
            except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
                raise self._no_journal(str(error)) from None
            if window.weft_monitor != VERSION:
                raise FormatError(
                    f"{str(self.path)!r}: version {window.weft_monitor} (expected {VERSION})",
                    "Use the version of weft that the job has.",
                )
            yield window

    def _no_journal(self, why: str) -> FormatError:
        return FormatError(f"{str(self.path)!r} is not a journal of weft.torch.monitor: {why}")
