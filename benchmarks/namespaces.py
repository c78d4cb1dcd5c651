"""Hosts of a benchmark: network namespaces of this machine, joined by a link of a given rate."""

import itertools
import os
import shutil
import signal
import subprocess
import threading
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from weft.errors import RunError

_PREFIX = "weft-"
# A burst of four of the longest segments: a real adapter cuts them itself, at no cost of cores.
_BURST = 256 << 10
_LATENCY = "50ms"
_BRIDGE = "switch"
MTU = "9000"  # bytes of a packet: jumbo frames
_made = itertools.count()


@dataclass(frozen=True)
class NetHost:
    """A namespace, its address, and the interface by which it reaches the others."""

    name: str
    address: str
    interface: str

    def command(self, arguments: Sequence[str]) -> list[str]:
        """Return the command line that runs something there."""
        return ["ip", "netns", "exec", self.name, *arguments]

    @property
    def environment(self) -> dict[str, str]:
        """What tells ranks of different namespaces apart: their memory is one machine's."""
        return {"WEFT_HOST": self.name, "GLOO_SOCKET_IFNAME": self.interface}


@contextmanager
def two_hosts(rate: float) -> Iterator[tuple[NetHost, NetHost]]:
    """Make two hosts with a link of ``rate`` bytes a second each way; remove them afterwards."""
    with _namespaces(2) as hosts:
        one, other = hosts
        _link(one.interface, one.name, other.interface, other.name)
        for host in hosts:
            _bring_up(host, rate)
        yield one, other


@contextmanager
def hosts_on_switch(rate: float, count: int) -> Iterator[tuple[NetHost, ...]]:
    """Make hosts that a switch joins: each sends and takes ``rate`` bytes a second.

    Packets are as long as networks between the hosts of a cluster have them.
    """
    with _namespaces(count + 1) as (*hosts, switch):
        _ip("-n", switch.name, "link", "add", _BRIDGE, "type", "bridge")
        _ip("-n", switch.name, "link", "set", _BRIDGE, "up")
        for number, host in enumerate(hosts):
            port = f"port{number}"
            _link(host.interface, host.name, port, switch.name)
            _bring_up(host, rate)
            _ip("-n", host.name, "link", "set", host.interface, "mtu", MTU)
            _ip("-n", switch.name, "link", "set", port, "master", _BRIDGE, "mtu", MTU, "up")
            _shape(switch, port, rate)
        yield tuple(hosts)


@contextmanager
def _namespaces(count: int) -> Iterator[list[NetHost]]:
    """Make namespaces without links; they go with whatever runs in them, however this ends."""
    if not (shutil.which("ip") and shutil.which("tc")):
        raise RunError("network namespaces need iproute2.", "Install it, e.g. apt install iproute2")
    if os.geteuid() != 0:
        raise RunError("network namespaces need root.", "Run this benchmark as root, e.g. by sudo.")
    _remove_leftovers()
    number = next(_made)
    hosts = [
        NetHost(
            f"{_PREFIX}{os.getpid()}-{number}-{end}",
            f"10.91.{number % 250}.{end + 1}",  # no other process is in these namespaces
            f"weft{end}",
        )
        for end in range(count)
    ]
    with _ended_by_signal(), ExitStack() as made:
        for host in hosts:
            _ip("netns", "add", host.name)
            made.callback(_remove, host.name)
        yield hosts


@contextmanager
def _ended_by_signal() -> Iterator[None]:
    """Turn termination signals into exceptions, so that what was created is removed."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def end(number: int, _: object) -> None:
        raise SystemExit(128 + number)

    before = {number: signal.signal(number, end) for number in (signal.SIGTERM, signal.SIGHUP)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _remove_leftovers() -> None:
    """Remove namespaces of runs that were killed: a name holds the process that made it."""
    listed = subprocess.run(["ip", "netns", "list"], capture_output=True, text=True, check=False)
    for name in (line.split()[0] for line in listed.stdout.splitlines() if line.strip()):
        pid = name.removeprefix(_PREFIX).partition("-")[0]
        if name.startswith(_PREFIX) and not Path("/proc", pid).exists():
            _remove(name)


def kill_processes(name: str) -> None:
    """Kill all that runs in a namespace, as if the host lost its power."""
    command = ["ip", "netns", "pids", name]
    listed = subprocess.run(command, capture_output=True, text=True, check=False)
    for pid in map(int, listed.stdout.split()):
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)


def _remove(name: str) -> None:
    kill_processes(name)
    _ip("netns", "delete", name)  # its end of the link goes with it


def _link(interface: str, host: str, other: str, other_host: str) -> None:
    ends = ("type", "veth", "peer", "name", other, "netns", other_host)
    _ip("link", "add", interface, "netns", host, *ends)


def _bring_up(host: NetHost, rate: float) -> None:
    inside = ("-n", host.name)
    _ip(*inside, "link", "set", "lo", "up")
    _ip(*inside, "addr", "add", f"{host.address}/24", "dev", host.interface)
    _ip(*inside, "link", "set", host.interface, "up")
    _shape(host, host.interface, rate)


def _shape(host: NetHost, interface: str, rate: float) -> None:
    shape = ("root", "tbf", "rate", f"{round(8 * rate)}bit", "burst", str(_BURST))
    _call(host.command(["tc", "qdisc", "add", "dev", interface, *shape, "latency", _LATENCY]))


def _ip(*arguments: str) -> None:
    _call(["ip", *arguments])


def _call(command: Sequence[str]) -> None:
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise RunError(
            f"{' '.join(command)}: {done.stderr.strip() or done.returncode}",
            "Network namespaces with shaped links need root and a kernel with veth and tbf.",
        )
