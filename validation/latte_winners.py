"""``python -m validation.latte_winners``: which DMA all-to-all is fastest, and what decides that.

Prints the tables of docs/dma.md: what each variant takes, and for each mechanism its constant, the
figure that pins it down, and what comes out without it.
"""

from itertools import groupby
from typing import Any

from validation.latte import (
    MECHANISMS,
    SIZES,
    Mechanism,
    Results,
    all_to_alls,
    fastest,
    lead_over_rccl,
    speeds_error,
    without,
    worst_phase,
)
from validation.markdown_tables import markdown_table
from weft.hardware import Platform, platform
from weft.report.text import Column
from weft.units import format_rate, format_size, format_time


def winners() -> str:
    """Return both tables as Markdown."""
    machine = platform("mi300x-8")
    whole = all_to_alls(machine)
    return "\n".join((_times(whole), _switched_off(machine, whole)))


def _times(found: Results) -> str:
    """Return what each variant takes at some sizes, and the fastest."""
    columns = [Column("size", "size", right=False), Column("fastest", "fastest", right=False)]
    columns += [Column(name, f"`{name}`", format_time) for name in found]
    rows = [
        {"size": format_size(nbytes), "fastest": f"`{fastest(found, nbytes)}`"}
        | {name: mine[nbytes].seconds for name, mine in found.items()}
        for nbytes in SIZES[::3]
    ]
    return markdown_table(columns, rows)


def _switched_off(machine: Platform, whole: Results) -> str:
    """Return a row for the model as it is, and one for each mechanism without it."""
    columns = [
        Column("name", "without", right=False),
        Column("constant", "constant", right=False),
        Column("pinned_by", "pinned down by", right=False),
        Column("phases", "phases", "{:.1f}".format),
        Column("speeds", "all-gathers", "{:.1%}".format),
        Column("lead", "all-to-alls", "{:.0%}".format),
        Column("changes", "all-to-all: fastest instead", right=False),
    ]
    rows: list[dict[str, Any]] = [{"name": "nothing", **_figures(machine, whole)}]
    for name, mechanism in MECHANISMS.items():
        other = without(machine, mechanism.constant, mechanism.off)
        found = all_to_alls(other)
        rows.append(
            {
                "name": name,
                "constant": _constant(machine, mechanism),
                "pinned_by": mechanism.pinned_by,
                **_figures(other, found),
                "changes": _changes(whole, found),
            }
        )
    return markdown_table(columns, rows)


def _figures(machine: Platform, exchanged: Results) -> dict[str, float]:
    return {
        "phases": worst_phase(machine),
        "speeds": speeds_error(machine),
        "lead": lead_over_rccl(machine, exchanged),
    }


def _constant(machine: Platform, mechanism: Mechanism) -> str:
    """Write the value of a constant, and of a rate also the value that stands in."""
    device = machine.require_device()
    holder = device if mechanism.constant == "release" else device.require_dma()
    value = getattr(holder, mechanism.constant)
    if not mechanism.off:
        return f"`{mechanism.constant}` {format_time(value)}"
    return f"`{mechanism.constant}` {format_rate(value)}, not {format_rate(mechanism.off)}"


def _changes(whole: Results, found: Results) -> str:
    """Name the variants that win instead, by range of sizes."""

    def instead(nbytes: int) -> str:
        after = fastest(found, nbytes)
        return "" if after == fastest(whole, nbytes) else after

    said = []
    for name, group in groupby(SIZES, instead):
        sizes = list(group)
        ends = dict.fromkeys(format_size(nbytes) for nbytes in (sizes[0], sizes[-1]))
        if name:
            said.append(f"{' to '.join(ends)}: `{name}`")
    return "; ".join(said)


if __name__ == "__main__":
    print(winners())
