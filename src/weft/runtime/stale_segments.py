"""What a killed world left in /dev/shm, told apart from what a live one owns.

Every file there has an owner who holds a lock on it for as long as it lives; the kernel
drops the lock when the owner ends, however it ends. So what can be locked has no owner.
"""

import fcntl
import os
from pathlib import Path

SHARED_MEMORY = Path("/dev/shm")  # noqa: S108 - where Linux keeps POSIX shared memory
PREFIX = "weft-"


def remove_stale_segments() -> list[str]:
    """Remove this user's files that have no owner; give their names."""
    return [path.name for path in SHARED_MEMORY.glob(f"{PREFIX}*") if _remove_if_left(path)]


def _remove_if_left(path: Path) -> bool:
    try:
        fd = os.open(path, os.O_RDWR | os.O_NOFOLLOW | os.O_CLOEXEC)
    except OSError:  # gone meanwhile, or another user's
        return False
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        if os.fstat(fd).st_uid != os.geteuid() or not is_at(fd, path):
            return False
        path.unlink()
    except OSError:  # it has an owner
        return False
    finally:
        os.close(fd)
    return True


def is_at(fd: int, path: Path) -> bool:
    """Tell whether ``path`` still names the open file.

    Only who holds the file's lock removes it, so for that one the answer stays true.
    """
    try:
        return os.path.samestat(os.fstat(fd), path.stat(follow_symlinks=False))
    except FileNotFoundError:
        return False
