"""What a test may need and this machine may lack: a marker says it, the skip gives the reason."""

import multiprocessing
import os
import shutil
import signal
import subprocess
from importlib.util import find_spec
from pathlib import Path

import pytest
from hypothesis import settings

from benchmarks.browser import find_browser

DATA = Path(os.environ.get("WEFT_DATA", Path(__file__).parents[2] / "shared" / "data"))
collect_ignore = ["torch_suite"]  # a program: it needs BACKEND in its environment
if not find_spec("torch"):
    collect_ignore += ["hosts", "soak", "torch"]

# What somebody calibrated on this machine must not change what tests see; ranks inherit it.
os.environ["XDG_CONFIG_HOME"] = str(Path(__file__).parent / "no-config")

# A shell lets what it starts in the background ignore Ctrl-C, and all that starts from there.
signal.signal(signal.SIGINT, signal.default_int_handler)

# The machine may be busy: a slow example is no failure, the timeout of a test is.
settings.register_profile("weft", deadline=None, derandomize="CI" in os.environ)
settings.load_profile("weft")


@pytest.fixture(scope="session", autouse=True)
def _ranks_start_fast():
    """Fork ranks from a server that has imported torch: seconds less for each of them."""
    multiprocessing.set_forkserver_preload(
        ["numpy", "weft.torch" if find_spec("torch") else "weft.runtime"]
    )
    multiprocessing.set_start_method("forkserver")


def can_make_namespaces() -> bool:
    command = ["unshare", "--net", "ip", "link"]
    if not all(map(shutil.which, command[::2])):
        return False
    return subprocess.run(command, capture_output=True, check=False).returncode == 0


# marker: (is it here?, why not)
NEEDS = {
    "torch": (lambda: find_spec("torch"), "PyTorch is not installed"),
    "triton": (lambda: find_spec("triton"), "Triton is not installed"),
    "data": (DATA.is_dir, "the measured data is not here: set WEFT_DATA to its folder"),
    "netns": (can_make_namespaces, "network namespaces need root and iproute2"),
    "browser": (find_browser, "Chromium is not installed"),
}


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    wanted = {mark.name for item in items for mark in item.iter_markers()}
    for marker in wanted & NEEDS.keys():
        is_here, reason = NEEDS[marker]
        if not is_here():
            for item in items:
                if item.get_closest_marker(marker):
                    item.add_marker(pytest.mark.skip(reason=reason))


@pytest.fixture(scope="session")
def data() -> Path:
    """The folder of measured data; a test that asks for it carries the marker ``data``."""
    return DATA
