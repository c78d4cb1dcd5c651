"""The size from which copies go past the caches: named, or measured on this machine."""

import os
from collections.abc import Mapping
from contextlib import suppress
from functools import cache

from weft._core import set_streamed_from
from weft.errors import PlatformError, SizeError, UsageError
from weft.hardware import is_calibrated, platform
from weft.hardware.device import Cores
from weft.units import parse_size

VARIABLE = "WEFT_STREAMED_FROM"


@cache
def measured_cores() -> Cores | None:
    """Give what was measured of this machine, if it was; a file of another one does not count."""
    with suppress(PlatformError):
        if is_calibrated() and (device := platform("here").device):
            return device.shared
    return None


def set_streaming_threshold(environment: Mapping[str, str] = os.environ) -> None:
    """Let copies go past the caches from the size that is named, or else that was measured."""
    named = environment.get(VARIABLE)
    if named is not None:
        try:
            set_streamed_from(parse_size(named))
        except SizeError as error:
            raise UsageError(
                f"{VARIABLE} is {named!r}: expected a size.", "Write it as 512KiB."
            ) from error
    elif (found := measured_cores()) is not None:
        set_streamed_from(found.streamed_from)
