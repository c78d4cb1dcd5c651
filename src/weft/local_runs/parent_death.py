"""Runs a program that receives SIGTERM when its parent exits.

Usage: -m weft.local_runs.parent_death PARENT PROGRAM ..

The kernel sends the signal, so it arrives however the parent ended. A launcher that receives it
stops its job.
"""

import ctypes
import os
import signal
import sys
from collections.abc import Sequence

_PR_SET_PDEATHSIG = 1  # linux/prctl.h; it outlives the change of program


def leashed(words: Sequence[str]) -> list[str]:
    """Return the command line that runs a program under this process."""
    return [sys.executable, "-m", "weft.local_runs.parent_death", str(os.getpid()), *words]


if __name__ == "__main__":
    _parent, _words = int(sys.argv[1]), sys.argv[2:]
    if ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, int(signal.SIGTERM)):
        raise OSError(ctypes.get_errno(), "prctl")
    if os.getppid() == _parent:  # otherwise it is too late for the kernel to tell
        os.execv(_words[0], _words)  # noqa: S606 - the words are ours
