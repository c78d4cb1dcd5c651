"""Reads configuration files of NCCL's example tuner plug-in: rows of CSV.

The format is documented in ``plugins/tuner/example`` of NCCL (``ext-tuner/example`` before 2.28):
``collective,min_bytes,max_bytes,algorithm,protocol,channels,nNodes,nRanks[,numPipeOps[,regBuff]]``.
The plug-in reads the file that ``NCCL_TUNER_CONFIG_FILE`` names; ``#`` starts a comment line.
"""

from __future__ import annotations

from dataclasses import dataclass

from weft.errors import FormatError

COLLECTIVES = ("broadcast", "reduce", "allgather", "reducescatter", "allreduce")
ALGORITHMS = ("tree", "ring", "collnet_direct", "collnet_chain", "nvls", "nvls_tree", "pat")
PROTOCOLS = ("ll", "ll128", "simple")
MAX_LINE = 256  # MAX_LINE_LENGTH of the plug-in: what is longer is cut
MAX_CHANNELS = 64  # MAXCHANNELS of NCCL
_FIELDS = (8, 10)


@dataclass(frozen=True, slots=True)
class TunerRow:
    """One rule: which algorithm and how many channels a range of sizes has. -1: any, or default."""

    collective: str
    min_bytes: int
    max_bytes: int
    algorithm: str
    protocol: str
    channels: int = -1
    num_nodes: int = -1
    num_ranks: int = -1
    pipe_ops: int = -1
    registered: int = -1


def read_tuner_file(text: str) -> list[TunerRow]:
    """Read the rows of a file; raise FormatError for what the plug-in would skip or cut."""
    rows = []
    for number, line in enumerate(text.splitlines(), 1):
        if line.strip() and not line.lstrip().startswith("#"):
            rows.append(_row(line, number))
    return rows


def _row(line: str, number: int) -> TunerRow:
    if len(line) >= MAX_LINE:
        raise FormatError(
            f"tuner file, line {number}: {len(line)} characters, the plug-in reads {MAX_LINE - 1}"
        )
    fields = [field.strip() for field in line.split(",")]
    if not _FIELDS[0] <= len(fields) <= _FIELDS[1]:
        raise FormatError(
            f"tuner file, line {number}: {len(fields)} fields (expected {_FIELDS[0]} to "
            f"{_FIELDS[1]})",
            "collective,min_bytes,max_bytes,algorithm,protocol,channels,nNodes,nRanks,pipe,reg",
        )
    known = ((0, "collective", COLLECTIVES), (3, "algorithm", ALGORITHMS))
    for place, what, names in (*known, (4, "protocol", PROTOCOLS)):
        if fields[place] not in names:
            raise FormatError(
                f"tuner file, line {number}: unknown {what} {fields[place]!r}",
                f"Use {', '.join(names)}.",
            )
    try:
        first, last, *rest = (int(fields[n]) for n in (1, 2, *range(5, len(fields))))
    except ValueError as error:
        raise FormatError(f"tuner file, line {number}: {error}") from error
    if not 0 <= first <= last:
        raise FormatError(
            f"tuner file, line {number}: sizes {first} to {last} are no range",
            "min_bytes <= max_bytes.",
        )
    if not (rest[0] == -1 or 1 <= rest[0] <= MAX_CHANNELS):
        raise FormatError(
            f"tuner file, line {number}: {rest[0]} channels (expected -1 or 1 to {MAX_CHANNELS})"
        )
    return TunerRow(fields[0], first, last, fields[3], fields[4], *rest)
