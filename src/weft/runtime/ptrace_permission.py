"""Permission for other ranks to read this process's memory, where Yama restricts ptrace."""

import ctypes
import os

_PR_SET_PTRACER = 0x59616D61  # linux/prctl.h: "Yama"


def allow_sibling_reads() -> bool:
    """Allow the launcher of this process and its descendants to read this process's memory.

    Yama (``kernel.yama.ptrace_scope`` 1, as on Ubuntu) forbids a process to read any but its
    own children. A process may name one other process, which is then allowed with all of its
    descendants. Ranks of one launcher are siblings, so naming it allows only them. Process 1 is
    never named: it would allow every process of the user. Always returns True: whether it helped
    is found out by reading.
    """
    launcher = os.getppid()
    if launcher > 1:  # an error only means that there is no Yama
        ctypes.CDLL(None).prctl(_PR_SET_PTRACER, ctypes.c_ulong(launcher), 0, 0, 0)
    return True
