"""The interactive timeline of a page: encoded picture, controls, and a table of what ran."""

from html import escape
from string import Template
from typing import Any

import numpy as np

from weft.report.packing import script_json
from weft.report.page import TEMPLATES, Section
from weft.report.picture import KINDS, MOST_SPANS, Picture, lightened, packed
from weft.report.text import Column
from weft.timeline.kernel_names import short_name
from weft.units import format_time

_MOST_NAMES = 25
_HIDDEN = " hidden"


def timeline_section(
    picture: Picture, title: str, text: str, *, number: int = 0, most: int = MOST_SPANS
) -> Section:
    """Return a section with at most ``most`` spans; ``number`` distinguishes several per page."""
    picture = lightened(picture, most)
    return Section(
        title,
        text,
        _COLUMNS,
        busiest(picture),
        drawings=[_drawing(picture, title, f"timeline-{number}")],
        fold=f"What ran longest, as a table ({_MOST_NAMES} names at most)",
    )


_COLUMNS = (
    Column("name", "name", short_name, right=False),
    Column("kind", "kind", right=False),
    Column("count", "times", "{:,}".format),
    Column("total", "in all", format_time),
    Column("longest", "longest", format_time),
    Column("where", "on", right=False),
)


def busiest(picture: Picture) -> list[dict[str, Any]]:
    """Return the names with the longest total time, those of GPUs before those of hosts."""
    on_gpu = np.asarray([not line.quiet for line in picture.lines] or [True], bool)[picture.line]
    length = picture.end - picture.start
    keys = np.stack([~on_gpu, picture.name, picture.kind]).astype(np.int64)
    found, which = np.unique(keys, axis=1, return_inverse=True)
    which = which.reshape(-1)
    total = np.bincount(which, length, minlength=found.shape[1])
    count = np.bincount(which, minlength=found.shape[1])
    longest = np.zeros(found.shape[1])
    np.maximum.at(longest, which, length)
    order = np.lexsort((-total, found[0]))[:_MOST_NAMES]
    return [
        {
            "name": picture.names[found[1, i]],
            "kind": KINDS[found[2, i]],
            "count": int(count[i]),
            "total": float(total[i]),
            "longest": float(longest[i]),
            "where": "the host" if found[0, i] else "",
        }
        for i in order.tolist()
    ]


def _drawing(picture: Picture, title: str, source: str) -> str:
    groups = list(dict.fromkeys(line.group for line in picture.lines))
    text = (TEMPLATES / "timeline.html").read_text(encoding="utf-8")
    return Template(text).substitute(
        source=source,
        title=escape(title),
        groups="".join(
            f'<option value="{escape(group)}">{escape(group)}</option>' for group in groups
        ),
        one_group="" if len(groups) > 1 else _HIDDEN,
        no_quiet="" if any(line.quiet for line in picture.lines) else _HIDDEN,
        quiet=" checked" if len(groups) == 1 else "",  # with one rank there is room for its host
        no_path="" if any(picture.paths) else _HIDDEN,
        legend=_legend(picture),
        data=script_json(packed(picture)),
    )


def _legend(picture: Picture) -> str:
    used = set(np.unique(picture.kind).tolist())
    if (picture.waits > 0).any():
        used.add(KINDS.index("waiting"))
    items = [
        f'<li><i class="k-{kind}"></i>{kind}</li>'
        for number, kind in enumerate(KINDS)
        if number in used
    ]
    if any(picture.paths):
        items.append('<li><i style="height:3px;background:var(--ink)"></i>critical path</li>')
    return "".join(items)
