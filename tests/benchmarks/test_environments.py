import stat
import sys
from pathlib import Path

import pytest

from benchmarks import collectives, environments, launch
from benchmarks.collective_case import KINDS
from benchmarks.environments import environment
from benchmarks.rows import Options
from weft.errors import RunError

pytestmark = pytest.mark.thorough

_MPIRUN = """#!/bin/sh
while [ "$1" != -n ]; do shift; done
shift 2
exec "$@"
"""
_PYTHON = """#!/bin/sh
PYTHONPATH={folder} exec {python} "$@"
"""


@pytest.fixture
def fake_environment(tmp_path, monkeypatch):
    """Put an environment into an empty cache whose launcher starts one rank of a fake mpi4py."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    home = environments.root() / "openmpi"
    (home / "bin").mkdir(parents=True)
    write_program(home / "bin" / "mpirun", _MPIRUN)
    write_program(
        home / "bin" / "python", _PYTHON.format(folder=home / "lib", python=sys.executable)
    )
    (home / "lib").mkdir()
    source = Path(__file__).with_name("fake_mpi4py.py").read_text()
    (home / "lib" / "mpi4py.py").write_text(source)
    (home / "complete").touch()
    return home


def write_program(path, text):
    path.write_text(text)
    path.chmod(path.stat().st_mode | stat.S_IXUSR)


@pytest.mark.multiprocess
@pytest.mark.parametrize("lies", [False, True])
def test_ranks_of_an_mpi_answer_in_their_own_environment(fake_environment, monkeypatch, lies):
    if lies:
        monkeypatch.setenv("FAKE_LIES", "1")
    with launch.started(("openmpi",), 1, pin=False) as started:
        assert started["openmpi"].about == "Fake MPI v1.0"
        for kind in KINDS:
            exchange = collectives.sized(kind, 1 << 10, 1, per_rank=True)
            options = Options(against=("openmpi",), rounds=1)
            outcome = collectives.measured(exchange, started, (), options)
            wrong = 2 * 256 if lies and exchange.room else 0  # before and after
            assert outcome.wrong("openmpi") == wrong


def test_an_environment_is_made_once(fake_environment, capsys):
    assert environment("openmpi", environments.root()) == fake_environment
    assert capsys.readouterr().out == ""


def test_an_environment_of_an_installation_that_is_gone_finds_our_torch(tmp_path):
    torch = pytest.importorskip("torch")
    packages = tmp_path / "torchrec" / "lib" / "python3.11" / "site-packages"
    packages.mkdir(parents=True)
    (packages / "weft-torch.pth").write_text("/gone/site-packages\n")
    (tmp_path / "torchrec" / "complete").touch()
    environment("torchrec", tmp_path)
    found = (packages / "weft-torch.pth").read_text()
    assert found == f"{Path(torch.__file__).parents[1]}\n"


def test_what_cannot_be_installed_is_said_in_one_line(tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", "")
    monkeypatch.setenv("PIP_CONFIG_FILE", "/dev/null")
    with pytest.raises(RunError, match=r"no environment for mpich could be made .*ERROR") as caught:
        environment("mpich", tmp_path)
    assert "leave mpich out of --against" in caught.value.hint
    assert "once" in capsys.readouterr().out
    assert not (tmp_path / "mpich" / "complete").exists()


def test_a_cache_that_cannot_be_written_is_said(tmp_path):
    (tmp_path / "file").touch()
    with pytest.raises(RunError, match="no folder for the environments") as caught:
        environment("mpich", tmp_path / "file" / "peers")
    assert "XDG_CACHE_HOME" in caught.value.hint
