"""``python -m validation.latte_winners``: which DMA all-to-all is fastest, and what decides that.

Prints the tables of docs/dma.md: at each size the fastest variant with all mechanisms, and with
each of them switched off. Ranges of sizes with the same answers are one row.
"""

from itertools import groupby

from validation.latte import MECHANISMS, SIZES, Results, all_to_alls, fastest
from validation.markdown_tables import markdown_table
from weft.hardware import platform
from weft.report.text import Column
from weft.units import format_size, format_time


def winners() -> str:
    """Return both tables as Markdown."""
    machine = platform("mi300x-8")
    whole = all_to_alls(machine)
    without = {name: all_to_alls(machine, changed) for name, changed in MECHANISMS.items()}
    return "\n".join((_times(whole), _switched_off(whole, without)))


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


def _switched_off(whole: Results, without: dict[str, Results]) -> str:
    """Return the fastest variant by range of sizes, with a column for each mechanism off."""
    columns = [Column("sizes", "sizes", right=False), Column("all", "fastest", right=False)]
    columns += [Column(name, f"without {name}", right=False) for name in without]

    def answers(nbytes: int) -> tuple[str, ...]:
        best = fastest(whole, nbytes)
        others = (fastest(found, nbytes) for found in without.values())
        return best, *("" if each == best else f"`{each}`" for each in others)

    rows = []
    for (best, *others), group in groupby(SIZES, answers):
        sizes = list(group)
        ends = dict.fromkeys(format_size(nbytes) for nbytes in (sizes[0], sizes[-1]))
        rows.append(
            {"sizes": " to ".join(ends), "all": f"`{best}`"}
            | dict(zip(without, others, strict=True))
        )
    return markdown_table(columns, rows)


if __name__ == "__main__":
    print(winners())
