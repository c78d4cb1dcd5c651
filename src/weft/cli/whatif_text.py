"""The text of ``weft whatif``: the replay and the measurement, then changes, best first."""

from pathlib import Path
from typing import Any

from weft.report.text import Column, bar, print_table, print_wrapped
from weft.units import format_time
from weft.whatif import Answer, errors_of


def print_answer(answer: Answer) -> None:
    """Print one job."""
    names = [Path(each).name for each in answer.file.split(", ")]
    title = names[0] if len(names) == 1 else f"{len(names)} ranks, {names[0]} .. {names[-1]}"
    print_wrapped(
        f"{title}: {answer.which_step} of {format_time(answer.measured_step)} measured, "
        f"{format_time(answer.replayed_step)} replayed ({_gain(answer.replay_error)})"
    )
    if answer.doubt:
        print_wrapped(f"  unreliable: {answer.doubt}; the changes below may be as inaccurate", "  ")
    _print_steps(answer)
    for note in answer.notes:
        print_wrapped(f"  {note}", "  ")
    if answer.outcomes:
        print()
        rows = [_row(outcome.as_row()) for outcome in sorted(answer.outcomes, key=lambda o: o.step)]
        columns = [
            Column("name", "predicted with", right=False, style="bold"),
            Column("step", "step", format_time),
            Column("range", "from .. to", optional=True),
            Column("gain", "saves", _gain),
            Column("bar", "", right=False, style="cyan", optional=True),
            Column("why", "assuming", right=False),
        ]
        print_table(columns, rows)


def _print_steps(answer: Answer) -> None:
    if len(answer.replays) < 2:
        return
    middle, most = errors_of(answer.replays)
    what = "steps, each put together from the others" if answer.rank is not None else "ranks"
    print(f"  {len(answer.replays)} {what}: median error {middle:.1%}, largest {most:.1%}")


def _gain(share: float) -> str:
    """Format a fraction with its sign; zero is never negative."""
    return f"{round(share, 3) + 0.0:+.1%}"


def _row(row: dict[str, Any]) -> dict[str, Any]:
    reach = f"{format_time(row['low'])} .. {format_time(row['high'])}"
    return row | {"range": reach, "bar": bar(row["gain"] * 2)}
