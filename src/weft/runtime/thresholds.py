"""Sizes from which something else is done, as the measured rates of a machine say."""

import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, fields
from functools import cache

from weft._core import set_streamed_from
from weft.errors import PlatformError, SizeError, UsageError
from weft.hardware import Cores, Platform, WorkingSet, here_path, platform
from weft.units import parse_size

VARIABLE = "WEFT_STREAMED_FROM"
_FLAGS_OF_A_MEETING = 4  # both ranks raise a flag that the other waits for, twice in a row


@dataclass(frozen=True, slots=True)
class Thresholds:
    """Bytes up to which, or from which, one way is faster than the other.

    ``streamed_from``: copies go past the caches. ``staged_up_to``: ordinary memory is copied into
    the heap for others to read, and above that read from where it lies. ``eager``: a second copy
    costs less than a second meeting, and ``eager_reduced`` the same where every rank reduces all.
    """

    streamed_from: int
    staged_up_to: int
    eager: int
    eager_reduced: int

    def __iter__(self) -> Iterator[tuple[str, int]]:
        return ((each.name, getattr(self, each.name)) for each in fields(self))


def thresholds(of: Platform) -> Thresholds | None:
    """Derive them from a platform that was calibrated; None from any other."""
    shared = None if of.device is None else of.device.shared
    if shared is None:
        return None
    meeting = _FLAGS_OF_A_MEETING * of.levels[0].latency
    return Thresholds(
        shared.streamed_from,
        # Staging copies a second time in a cache; a far read is one copy at the kernel's rate.
        _most(shared, lambda each, _: each.cached_both > 2 * shared.far_rate),
        _most(shared, lambda each, nbytes: nbytes / each.cached_both < meeting),
        # Two ranks that reduce all of it do half of it in vain.
        _most(shared, lambda each, nbytes: nbytes / 2 / each.reduced_both < meeting),
    )


def _most(shared: Cores, pays: Callable[[WorkingSet, int], bool]) -> int:
    """Give the largest copy, half of what is in use, up to which it always pays."""
    most = 0
    for in_use, each in sorted((parse_size(key), each) for key, each in shared.sets.items()):
        if not pays(each, in_use // 2):
            break
        most = in_use // 2
    return most


@cache
def measured_thresholds() -> Thresholds | None:
    """Give those of this machine, if it was calibrated; a file of another one does not count."""
    with suppress(PlatformError):
        return thresholds(platform("here")) if here_path().is_file() else None
    return None


def choose_stores(environment: Mapping[str, str] = os.environ) -> None:
    """Let copies go past the caches from the size that is named, or else that was measured."""
    named = environment.get(VARIABLE)
    if named is not None:
        try:
            set_streamed_from(parse_size(named))
        except SizeError as error:
            raise UsageError(
                f"{VARIABLE} is {named!r}: expected a size.", "Write it as 512KiB."
            ) from error
    elif (found := measured_thresholds()) is not None:
        set_streamed_from(found.streamed_from)
