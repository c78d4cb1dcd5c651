"""Odd machines: little shared memory, no home, no compiler, other locales, clocks that jump."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.fuzz import samples
from tests.hostile.verbs import QUICK
from tests.runtime.leftovers import nothing_left

pytestmark = pytest.mark.thorough

ROOT = Path(__file__).parents[2]
RANKS = """
import sys
import numpy as np
import weft
import weft.errors

def total(world):
    x = np.full(1000, world.rank + 1.0)
    for _ in range(3):
        world.all_reduce(x)
    for size in eval(sys.argv[2]):
        world.all_reduce(np.ones(size, np.uint8))
    return float(x[0])

if __name__ == "__main__":
    try:
        print(weft.spawn(total, 2, timeout=float(sys.argv[1])))
    except weft.errors.RunError as error:
        sys.exit(f"{error.message.splitlines()[0]} {error.hint}")
"""


def weft_of(arguments, *, python=(), cwd=None, **environment):
    """Run the command line in another environment; None takes a variable away."""
    known = {**os.environ, **environment}
    known = {key: value for key, value in known.items() if value is not None}
    command = [sys.executable, *python, *arguments]
    return subprocess.run(
        command, cwd=cwd or ROOT, env=known, capture_output=True, timeout=110, check=False
    )


def ranks(tmp_path, *, prefix=(), timeout=30, sizes="()", **environment):
    script = tmp_path / "ranks.py"
    script.write_text(RANKS)
    known = {**os.environ, "PYTHONPATH": str(ROOT / "src"), **environment}
    command = [*prefix, sys.executable, str(script), str(timeout), sizes]
    return subprocess.run(
        command, cwd=tmp_path, env=known, capture_output=True, text=True, timeout=110, check=False
    )


NOWHERE = {"PATH": "/nonexistent", "CC": "/nonexistent", "HOME": "/proc", "TMPDIR": "/proc"}
ASCII = {"LANG": "C", "LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}


@pytest.mark.parametrize(
    ("python", "environment"),
    [
        pytest.param(
            ("-O", "-W", "error"),
            {**NOWHERE, "XDG_CONFIG_HOME": None},
            id="-O, -W error, no home, nothing on the path",
        ),
        pytest.param(("-OO",), ASCII, id="-OO, an ASCII terminal"),
    ],
)
def test_every_verb_answers(python, environment):
    done = weft_of(["-m", "tests.hostile.verbs"], python=python, **environment)
    assert done.returncode == 0, done.stderr.decode(errors="replace")[-2000:]
    assert json.loads(done.stderr) == dict.fromkeys(QUICK, 0)


def test_what_cannot_be_written_at_home_is_an_error_of_one_line():
    asked = ["collective", "all_reduce", "--size", "1KiB", "--on", "h100-8"]
    done = weft_of(["-m", "weft", *asked, "-o", "/proc/nowhere/x.csv"])
    assert done.returncode == 2
    assert len(done.stderr.splitlines()) <= 2
    assert done.stderr.startswith(b"weft: ")


NOT_UTF8 = b"rank\xff 0"


@pytest.mark.parametrize("suffix", ["html", "json", "csv", ""])
def test_a_trace_whose_name_is_no_utf8_is_analysed(tmp_path, suffix):
    trace, out = os.fsencode(tmp_path) + b"/" + NOT_UTF8 + b".json", tmp_path / f"out.{suffix}"
    Path(os.fsdecode(trace)).write_bytes(samples.KINETO)
    wanted = [b"-o", os.fsencode(out)] if suffix else [b"--json"]
    done = weft_of([b"-m", b"weft", b"analyze", trace, *wanted])
    assert done.returncode == 0, done.stderr
    text = out.read_bytes() if suffix else done.stdout
    assert "rank\ufffd 0" in text.decode() or b"rank\\udcff 0" in text or b"\\ufffd 0" in text


def test_a_workload_whose_name_is_no_utf8_is_planned(tmp_path):
    file = os.fsencode(tmp_path) + b"/" + NOT_UTF8 + b".toml"
    Path(os.fsdecode(file)).write_bytes(samples.WORKLOAD)
    written = tmp_path / "plan.json"
    asked = [b"-m", b"weft", b"plan", file, b"--on", b"h100-8", b"--ranks", b"4"]
    done = weft_of([*asked, b"-o", os.fsencode(written)])
    assert done.returncode == 0, done.stderr
    assert json.loads(written.read_bytes())["plan"]["workload"] == "rank\ufffd 0"


@pytest.mark.multiprocess
@pytest.mark.parametrize(
    "environment",
    [
        pytest.param(NOWHERE, id="no compiler, no home"),
        pytest.param(
            {**ASCII, "PYTHONOPTIMIZE": "2", "PYTHONWARNINGS": "error"}, id="ASCII, -OO, -W error"
        ),
    ],
)
def test_ranks_meet(tmp_path, environment):
    with nothing_left():
        done = ranks(tmp_path, **environment)
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip() == "[12.0, 12.0]"


@pytest.mark.multiprocess
def test_ranks_meet_where_names_have_spaces_and_are_no_utf8(tmp_path):
    folder = tmp_path / "a folder \udcff"
    folder.mkdir()
    with nothing_left():
        done = ranks(folder, TMPDIR=str(folder))
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip() == "[12.0, 12.0]"


needs_mounts = pytest.mark.skipif(
    os.geteuid() != 0 or shutil.which("unshare") is None, reason="mounting needs root"
)


@needs_mounts
@pytest.mark.multiprocess
@pytest.mark.parametrize(
    ("option", "told"), [("size=64k", "No space left"), ("ro", "Read-only file system")]
)
def test_shared_memory_that_cannot_be_had_is_an_error_that_says_so(tmp_path, option, told):
    mount = f'mount -t tmpfs -o {option} tmpfs /dev/shm && exec "$@"'
    done = ranks(tmp_path, prefix=["unshare", "--mount", "sh", "-c", mount, "sh"], timeout=20)
    assert done.returncode == 1
    assert told in done.stderr
    assert "/dev/shm" in done.stderr


@needs_mounts
@pytest.mark.multiprocess
def test_calls_of_many_sizes_fit_a_small_shared_memory(tmp_path):
    mount = 'mount -t tmpfs -o size=8m tmpfs /dev/shm && exec "$@"'
    prefix = ["unshare", "--mount", "sh", "-c", mount, "sh"]
    done = ranks(tmp_path, prefix=prefix, sizes="range(1 << 20, (1 << 20) + 640, 64)")
    assert done.returncode == 0, done.stderr


@pytest.mark.multiprocess
def test_ranks_meet_where_addresses_are_limited(tmp_path):
    done = ranks(tmp_path, prefix=["sh", "-c", 'ulimit -v 8000000 && exec "$@"', "sh"])
    assert done.returncode == 0, done.stderr


JUMPING = """
#define _GNU_SOURCE
#include <dlfcn.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>
/* The wall clock goes a day forward, then a day back, at every look at it; others go on. */
static long jump(void) {
  static int looks;
  return (__sync_fetch_and_add(&looks, 1) % 2) * 172800L - 86400L;
}
int clock_gettime(clockid_t id, struct timespec* out) {
  int result = (int)syscall(SYS_clock_gettime, id, out);
  if (id == CLOCK_REALTIME && result == 0) out->tv_sec += jump();
  return result;
}
int gettimeofday(struct timeval* restrict out, void* restrict zone) {
  struct timespec now;
  (void)zone;
  clock_gettime(CLOCK_REALTIME, &now);
  out->tv_sec = now.tv_sec;
  out->tv_usec = now.tv_nsec / 1000;
  return 0;
}
time_t time(time_t* out) {
  struct timespec now;
  clock_gettime(CLOCK_REALTIME, &now);
  if (out) *out = now.tv_sec;
  return now.tv_sec;
}
"""


@pytest.mark.multiprocess
@pytest.mark.skipif(shutil.which("cc") is None, reason="the clock is replaced by a library")
def test_a_clock_that_jumps_does_not_matter(tmp_path):
    source, library = tmp_path / "jumping.c", tmp_path / "jumping.so"
    source.write_text(JUMPING)
    subprocess.run(["cc", "-shared", "-fPIC", "-O1", source, "-o", library], check=True)
    look = [sys.executable, "-c", "import time; print(abs(time.time() - time.time()) > 86400)"]
    seen = subprocess.run(
        look, env={**os.environ, "LD_PRELOAD": str(library)}, capture_output=True, check=True
    )
    assert seen.stdout.strip() == b"True"
    with nothing_left():
        done = ranks(tmp_path, LD_PRELOAD=str(library), timeout=20)
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip() == "[12.0, 12.0]"


def test_no_wait_looks_at_the_wall_clock():
    """What measures or waits takes a clock that nobody can set; dates and ages of files may not."""
    wall = re.compile(r"\btime\.time\(|CLOCK_REALTIME|system_clock|gettimeofday")
    # The age of a calibration; the date of a window of a job, and its age in another process.
    allowed = {
        "calibration/torch_calibration.py",
        "cli/verbs/watch_verb.py",
        "trace/live/job_window.py",
    }
    files = [*(ROOT / "src/weft").rglob("*.py"), *(ROOT / "native").rglob("*.?pp")]
    found = {
        str(path.relative_to(ROOT / "src/weft") if path.suffix == ".py" else path.name)
        for path in files
        if wall.search(path.read_text())
    }
    assert found <= allowed


@pytest.mark.skipif(os.geteuid() != 0, reason="becoming another user needs root")
def test_a_home_that_may_not_be_entered_is_one_without_calibration(tmp_path):
    """As ``sudo -u`` leaves it: HOME is still that of who called."""
    (tmp_path / "weft").mkdir()
    (tmp_path / "weft" / "here.toml").write_text("name = 'here'\n")
    tmp_path.chmod(0o700)
    look = "import os, weft.hardware as h; os.setuid(64001); print(h.is_calibrated())"
    done = weft_of(["-c", look], XDG_CONFIG_HOME=str(tmp_path))
    assert (done.stdout.strip(), done.returncode) == (b"False", 0), done.stderr


@pytest.mark.parametrize("output", ["/proc/x.csv", "/dev/full/x.csv"])
def test_an_output_that_cannot_be_written_is_told_in_a_line(output):
    asked = ["collective", "all_reduce", "--size", "1KiB", "--on", "h100-8"]
    done = weft_of(["-m", "weft", *asked, "-o", output])
    assert done.returncode in (1, 2)
    assert done.stderr.startswith(b"weft: ")
    assert len(done.stderr.splitlines()) <= 2


def test_a_full_disk_under_the_answer_is_told_in_a_line():
    with Path("/dev/full").open("wb") as full:
        command = [sys.executable, "-m", "weft", "platforms"]
        done = subprocess.run(
            command, cwd=ROOT, stdout=full, stderr=subprocess.PIPE, timeout=60, check=False
        )
    assert done.returncode == 1
    assert b"weft: OSError: No space left on device" in done.stderr
