"""``weft watch``: which rank of a running job is late, and why."""

import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from weft.cli.options import Json
from weft.errors import UsageError
from weft.report.text import Column, page, print_table
from weft.units import format_time

if TYPE_CHECKING:
    from weft.trace.live.job_window import JobWindow
    from weft.trace.live.window_journal import JournalReader

_EVERY = 0.5  # seconds between looks at the journal
_OLD = 10.0  # seconds; a monitor writes every two, and later if rank 0 is in a long collective
_MOST_RANKS = 16


def watch(
    journal: Annotated[
        str | None,
        typer.Argument(
            metavar="[JOURNAL]",
            help="The journal of a job; default: that of the last monitored job of this host.",
        ),
    ] = None,
    *,
    port: Annotated[
        int | None,
        typer.Option("--port", metavar="N", help="Serve Prometheus metrics; 0 is a free port."),
    ] = None,
    host: Annotated[
        str, typer.Option("--host", metavar="NAME", help="The address that --port listens on.")
    ] = "127.0.0.1",
    once: Annotated[bool, typer.Option("--once", help="Print the last window and exit.")] = False,
    seconds: Annotated[
        float | None, typer.Option("--for", metavar="SECONDS", help="Exit after this time.")
    ] = None,
    json: Json = False,
) -> None:
    """Follow the windows that a job with weft.torch.monitor writes."""
    from weft.trace.live.prometheus import MetricsServer
    from weft.trace.live.window_journal import JournalReader, newest_journal

    if seconds is not None and seconds <= 0:
        raise UsageError(f"--for must be > 0 (got {seconds})")
    path = Path(journal) if journal else newest_journal()
    reader = JournalReader(path)
    found = list(reader.new())
    if once:
        if not found:
            raise UsageError(f"{path} has no window yet", "Wait for some steps of the job.")
        _show(found[-1], json=json)
        _say_if_old(found[-1], json=json)
        return
    last = found[-1:]
    server = None
    if port is not None:
        server = MetricsServer(port, lambda: last[-1] if last else None, host)
        print(f"metrics of {path} on http://{host}:{server.port}/metrics", flush=True)
    for window in last:
        _show(window, json=json)
        _say_if_old(window, json=json)
    try:
        _follow(reader, last, None if seconds is None else time.monotonic() + seconds, json=json)
    except KeyboardInterrupt:
        return
    finally:
        if server is not None:
            server.close()


def _follow(
    reader: "JournalReader", last: "list[JobWindow]", until: float | None, *, json: bool
) -> None:
    while until is None or time.monotonic() < until:
        for window in reader.new():
            last[:] = [window]
            _show(window, json=json)
        time.sleep(_EVERY)


def _say_if_old(window: "JobWindow", *, json: bool) -> None:
    """Print how long ago a window was written, if the job should have written more since."""
    age = time.time() - window.time
    if not json and age > max(_OLD, 3 * window.seconds):
        page().write_wrapped(
            f"this was {format_time(age)} ago: the job has ended, or its rank 0 is stuck"
        )


def _show(window: "JobWindow", *, json: bool) -> None:
    """Print a window: its sentences, then the ranks that others wait for first."""
    if json:
        import msgspec

        print(msgspec.json.encode(window).decode(), flush=True)
        return
    place = page()
    place.write("")
    for number, line in enumerate(window.sentences()):
        place.write_wrapped(place.paint(line, "bold") if number else line)
    ranks = sorted(window.ranks, key=lambda rank: (-rank.cost, rank.rank))
    rows = [
        {
            "rank": rank.rank,
            "step": rank.step_seconds,
            "waiting": rank.waiting,
            "moving": rank.moving,
            "last": f"{rank.num_last} of {rank.num_collectives}",
            "cost": rank.cost,
            "why": "silent" if rank.silent else rank.why if rank.num_last else "",
        }
        for rank in ranks[:_MOST_RANKS]
    ]
    columns = [
        Column("rank", "rank", style="bold"),
        Column("step", "step", format_time),
        Column("waiting", "waits", format_time),
        Column("moving", "moves", format_time),
        Column("last", "was last in"),
        Column("cost", "others waited", format_time),
        Column("why", "because", right=False),
    ]
    print_table(columns, rows, to=place)
    if len(ranks) > _MOST_RANKS:
        place.write(f"and {len(ranks) - _MOST_RANKS} ranks more: --json has them all")
    place.file.flush()
