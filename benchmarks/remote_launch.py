"""Starts weft and its peers on hosts that are network namespaces, one rank on each."""

import secrets
import shlex
import shutil
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, closing, contextmanager
from pathlib import Path

from benchmarks.environments import MPIS
from benchmarks.launch import home_of, rank_words
from benchmarks.namespaces import NetHost
from weft.local_runs.parent_death import leashed
from weft.local_runs.rank_team import Start, Team, torch_backend
from weft.runtime.env_rendezvous import free_port

# Namespaces of one machine share its memory: nothing but the links may carry messages.
# MPICH takes UCX, which would find shared memory by itself; OpenMPI its own layers.
_OPTIONS = {
    "openmpi": (
        *("mpirun", "--allow-run-as-root", "--bind-to", "none"),
        *("--mca", "mpi_yield_when_idle", "1", "--mca", "pml", "ob1", "--mca", "btl", "tcp,self"),
    ),
    "mpich": ("mpiexec", "-launcher", "ssh", "-bind-to", "none", "-ppn", "1"),
}
_ONLY_LINKS = {"UCX_TLS": "tcp"}


@contextmanager
def started_on(hosts: Sequence[NetHost], names: Sequence[str]) -> Iterator[dict[str, Team]]:
    """Start weft and peers by name with one rank per host; all are stopped on exit."""
    with tempfile.TemporaryDirectory(prefix="weft-") as folder, ExitStack() as stack:
        agent = _agent(Path(folder), hosts)
        teams = {}
        for name in names:
            starts = [_mpi(name, hosts, agent)] if name in MPIS else _torch(name, hosts)
            teams[name] = stack.enter_context(closing(Team(name, len(hosts), starts, folder)))
        yield teams


def _torch(name: str, hosts: Sequence[NetHost]) -> list[Start]:
    words = [sys.executable, "-m", "benchmarks.torch_rank", torch_backend(name)]
    shared = {
        "MASTER_ADDR": hosts[0].address,
        "MASTER_PORT": str(free_port()),
        "TORCHELASTIC_RUN_ID": secrets.token_hex(16),
        "WORLD_SIZE": str(len(hosts)),
        "OMP_NUM_THREADS": "1",
    }
    return [
        Start(leashed(_there(host, words)), {**shared, **host.environment, "RANK": str(rank)})
        for rank, host in enumerate(hosts)
    ]


def _mpi(name: str, hosts: Sequence[NetHost], agent: Path) -> Start:
    home = home_of(name)
    program, *options = _OPTIONS[name]
    words = [str(home / "bin" / program), *options, "-n", str(len(hosts))]
    if name == "openmpi":
        words += ["--host", ",".join(f"{host.address}:1" for host in hosts)]
        words += ["--mca", "plm_ssh_agent", str(agent)]
    else:
        words += ["-launcher-exec", str(agent), "-hosts", ",".join(h.address for h in hosts)]
    first = hosts[0]
    # A launcher takes hosts of one name for one host: each gets a name of its own.
    named = f'hostname {first.name}; exec {shlex.join([*words, *rank_words(home)])} "$@"'
    return Start(leashed(_there(first, ["unshare", "--uts", "sh", "-c", named, "-"])), _ONLY_LINKS)


def _there(host: NetHost, words: Sequence[str]) -> list[str]:
    program, *rest = host.command(words)
    return [shutil.which(program) or program, *rest]


def _agent(folder: Path, hosts: Sequence[NetHost]) -> Path:
    """Write what launchers take for ssh: an address, then the command to run there."""
    cases = "".join(f"{host.address}) name={host.name};;\n" for host in hosts)
    text = f"""#!/bin/sh
while case $1 in -*) true;; *) false;; esac; do shift; done
host=$1; shift
case $host in
{cases}esac
exec ip netns exec $name unshare --uts sh -c "hostname $name; $*"
"""
    path = folder / "agent"
    path.write_text(text, encoding="ascii")
    path.chmod(0o700)
    return path
