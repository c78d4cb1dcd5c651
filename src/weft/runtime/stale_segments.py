"""Removal of files that killed worlds left in /dev/shm.

Every file of a live world is locked by its owner, and the kernel drops the lock when the owner
ends, however it ends. So a file that can be locked is stale.
"""

import fcntl
import os
from pathlib import Path

SHARED_MEMORY = Path("/dev/shm")  # noqa: S108 - where Linux keeps POSIX shared memory
PREFIX = "weft-"


def remove_stale_segments() -> list[str]:
    """Remove this user's files that have no owner; return their names."""
    return [path.name for path in SHARED_MEMORY.glob(f"{PREFIX}*") if _remove_if_stale(path)]


def _remove_if_stale(path: Path) -> bool:
    try:
        fd = os.open(path, os.O_RDWR | os.O_NOFOLLOW | os.O_CLOEXEC)
    except OSError:  # removed meanwhile, or another user's
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
    """Return whether ``path`` still names the open file.

    Only the holder of the lock removes the file, so for the holder the answer stays true.
    """
    try:
        return os.path.samestat(os.fstat(fd), path.stat(follow_symlinks=False))
    except FileNotFoundError:
        return False
