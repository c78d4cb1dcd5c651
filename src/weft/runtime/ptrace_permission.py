"""Whether other ranks may read this process's memory, where a system asks for consent."""

import ctypes
import os

_PR_SET_PTRACER = 0x59616D61  # linux/prctl.h: "Yama"


def allow_sibling_reads() -> bool:
    """Let the launcher of this process and what it started read the memory of this process.

    Yama (``kernel.yama.ptrace_scope`` 1, as on Ubuntu) forbids a process to read any but its
    own children. A process may name one other, which and whose descendants then may: ranks of
    one launcher are siblings, so nobody but they are let in. The process that everything
    descends from would let in all of the user's, so it is not named. Always true: whether it
    helped is seen by reading.
    """
    launcher = os.getppid()
    if launcher > 1:  # an error only says that there is no Yama to ask
        ctypes.CDLL(None).prctl(_PR_SET_PTRACER, ctypes.c_ulong(launcher), 0, 0, 0)
    return True
