"""The size from which copies use streaming (non-temporal) stores: configured or measured."""

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
    """Return what was measured on this machine, None if it is not calibrated."""
    with suppress(PlatformError):
        if is_calibrated() and (device := platform("here").device):
            return device.shared
    return None


def set_streaming_threshold(environment: Mapping[str, str] = os.environ) -> None:
    """Set the threshold from WEFT_STREAMED_FROM, or from the calibration of this machine."""
    named = environment.get(VARIABLE)
    if named is not None:
        try:
            set_streamed_from(parse_size(named))
        except SizeError as error:
            raise UsageError(
                f"{VARIABLE}: expected a size (got {named!r}).", "Write it as 512KiB."
            ) from error
    elif (found := measured_cores()) is not None:
        set_streamed_from(found.streamed_from)
