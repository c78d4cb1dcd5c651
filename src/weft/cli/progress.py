"""Progress of long work: on stderr, only on a terminal, cleared when the work is done."""

import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import TypeVar

Item = TypeVar("Item")


@contextmanager
def working(label: str) -> Iterator[None]:
    """Show that work of unknown length is in progress."""
    if not sys.stderr.isatty():
        yield
        return
    from rich.console import Console

    with Console(stderr=True).status(label):
        yield


def track(items: Sequence[Item] | Iterable[Item], label: str, total: int = 0) -> Iterator[Item]:
    """Yield the items one by one and show how many are done."""
    if not sys.stderr.isatty():
        yield from items
        return
    from rich.console import Console
    from rich.progress import Progress

    count = total or (len(items) if isinstance(items, Sequence) else None)
    with Progress(console=Console(stderr=True), transient=True) as progress:
        task = progress.add_task(label, total=count)
        for item in items:
            yield item
            progress.advance(task)


@contextmanager
def reported(label: str) -> Iterator[Callable[[int, int], None] | None]:
    """Yield a function that is told how many items of how many are done; None in a pipe."""
    if not sys.stderr.isatty():
        yield None
        return
    from rich.console import Console
    from rich.progress import Progress

    with Progress(console=Console(stderr=True), transient=True) as progress:
        task = progress.add_task(label, total=None)
        yield lambda done, total: progress.update(task, completed=done, total=total)
