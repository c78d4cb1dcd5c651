"""What a user names as traces: files, folders, globs, zip archives, ``-`` for stdin.

A folder stands for the traces in it, an archive for those among its members. Members and stdin are
copied to a temporary file while they are read, one at a time, because readers read a file twice.
"""

import glob
import re
import shutil
import sys
import tempfile
import zipfile
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from weft.errors import FormatError, UsageError

STDIN = "-"
_SUFFIXES = (".json", ".json.gz", ".et", ".et.gz", ".sqlite")
_DUMP = re.compile(r"\w*trace\w*rank_?\d+$|\w*rank_?\d+$", re.IGNORECASE)  # nccl_trace_rank_0
_RAW_REPORTS = (".nsys-rep", ".qdrep")


@dataclass(frozen=True, slots=True)
class TraceFile:
    """One trace: a file, or a member of an archive."""

    path: Path
    member: str = ""

    def __str__(self) -> str:
        return f"{self.path}/{self.member}" if self.member else str(self.path)

    @classmethod
    def of(cls, name: str) -> "TraceFile":
        """Return the file that has this text."""
        path = Path(name)
        archives = (p for p in path.parents if p.suffix == ".zip" and p.is_file())
        archive = None if path.exists() else next(archives, None)
        return cls(path) if archive is None else cls(archive, str(path.relative_to(archive)))

    @contextmanager
    def opened(self) -> Iterator[Path]:
        """Yield the path of a file with its content."""
        if str(self.path) != STDIN and not self.member:
            yield self.path
            return
        with tempfile.TemporaryDirectory(prefix="weft-trace-") as folder:
            copy = Path(folder) / (Path(self.member).name or "stdin")
            with copy.open("wb") as file:
                if not self.member:
                    shutil.copyfileobj(sys.stdin.buffer, file)
                else:
                    try:
                        with (
                            zipfile.ZipFile(self.path) as archive,
                            archive.open(self.member) as found,
                        ):
                            shutil.copyfileobj(found, file)
                    except (zipfile.BadZipFile, OSError, RuntimeError) as error:
                        raise FormatError(f"cannot read {str(self)!r}: {error}") from None
            yield copy


def trace_files(named: str | Path | Iterable[str | Path]) -> list[TraceFile]:
    """Return the traces that ``named`` stands for, in natural order within each folder."""
    words = [named] if isinstance(named, str | Path) else list(named)
    found = [each for word in words for each in _expanded(str(word))]
    if not found:
        raise UsageError("paths: no trace files", "Name the files: weft analyze rank*.json.gz")
    return list(dict.fromkeys(found))


def _expanded(word: str) -> list[TraceFile]:
    path = Path(word)
    if word == STDIN:
        return [TraceFile(path)]
    if path.is_dir():
        inside = sorted(
            (p for p in path.iterdir() if p.is_file() and is_trace_name(p.name)), key=_natural
        )
        if not inside:
            raise FormatError(
                f"{word!r} is a folder without traces",
                f"Expected files that end in {', '.join(_SUFFIXES)}.",
            )
        return [TraceFile(each) for each in inside]
    if not path.exists() and glob.has_magic(word):
        matched = sorted(map(Path, glob.glob(word)), key=_natural)  # noqa: PTH207 - an absolute pattern
        if not matched:
            raise FormatError(f"no file matches {word!r}")
        return [TraceFile(each) for each in matched if each.is_file()]
    if path.suffix in _RAW_REPORTS:
        raise FormatError(
            f"{word!r} is a raw report of Nsight Systems (expected its SQLite export)",
            f"Run nsys export --type sqlite {path.name}",
        )
    if path.suffix == ".zip" and path.is_file():
        try:
            with zipfile.ZipFile(path) as archive:
                names = [name for name in archive.namelist() if is_trace_name(Path(name).name)]
        except (zipfile.BadZipFile, OSError) as error:
            raise FormatError(f"cannot read {str(path)!r} as a zip archive: {error}") from None
        if not names:
            raise FormatError(
                f"{str(path)!r} is an archive without traces",
                f"Expected members that end in {', '.join(_SUFFIXES)}.",
            )
        return [TraceFile(path, name) for name in sorted(names, key=_natural)]
    return [TraceFile(path)]


def is_trace_name(name: str) -> bool:
    """Return whether a file in a folder or an archive is a trace, by its name.

    >>> is_trace_name("rank0.pt.trace.json.gz"), is_trace_name("nccl_trace_rank_3")
    (True, True)
    >>> is_trace_name("README.md"), is_trace_name("._rank0.json")
    (False, False)
    """
    if name.startswith("."):
        return False
    return name.endswith(_SUFFIXES) or _DUMP.fullmatch(name) is not None


def _natural(name: str | Path) -> list[tuple[int, str]]:
    """Return a sort key by which rank10 follows rank9."""
    parts = re.split(r"(\d+)", str(name))
    return [(int(part), "") if part.isdecimal() else (-1, part) for part in parts]
