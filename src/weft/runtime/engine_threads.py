"""Where the threads of a world run besides the caller's: how many, on which cores, how urgently."""

import os
import threading
from collections.abc import Collection, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, fields
from typing import Any

from weft.errors import UsageError, nearest

VARIABLE = "WEFT_ENGINES"
REST = "rest"
POLICIES = {"other": os.SCHED_OTHER, "batch": os.SCHED_BATCH, "idle": os.SCHED_IDLE}
_MOST = 64  # engines: a queue each of as many links as any node has
_NICEST = 19
_LAST_CORE = 1 << 16

Cores = Collection[int]  # kept as a frozenset


@dataclass(frozen=True, slots=True)
class Engines:
    """The copy engines of a rank and its worker: threads that run beside the calling one.

    ``number`` of engines share the copy and nic queues; without it every queue has its own.
    ``cores`` are those that engines and worker may use, ``nice`` (-20 to 19) and ``policy``
    (other, batch, idle) say how urgent they are, and ``caller`` the cores of the calling
    thread: a set, or ``"rest"`` for all that the engines leave. What is not given stays.
    """

    number: int | None = None
    cores: Cores | None = None
    nice: int | None = None
    policy: str | None = None
    caller: Cores | str | None = None

    def __post_init__(self) -> None:
        """Take any collection of cores, and refuse what no machine has."""
        object.__setattr__(self, "cores", _cores(self.cores, "cores"))
        if self.caller != REST:
            object.__setattr__(self, "caller", _cores(self.caller, "caller"))
        elif self.cores is None:
            raise UsageError("caller='rest' needs cores.", "Say which cores the engines take.")
        _require_whole("number", self.number, 1, _MOST)
        _require_whole("nice", self.nice, -_NICEST - 1, _NICEST)
        if self.policy is not None and self.policy not in POLICIES:
            raise UsageError(
                f"no scheduling policy is called {self.policy!r}.", nearest(self.policy, POLICIES)
            )

    @classmethod
    def parse(cls, text: str) -> "Engines":
        """Read ``number=2,cores=1-3+5,nice=10,policy=batch,caller=rest``.

        >>> Engines.parse("cores=0-1+3,nice=5").cores == frozenset({0, 1, 3})
        True
        """
        given = dict(_pair(part) for part in text.replace(" ", "").split(",") if part)
        values: dict[str, Any] = {key: _value(key, word) for key, word in given.items()}
        return cls(**values)

    def __str__(self) -> str:
        """Write what is given as ``parse`` reads it."""
        given = {each.name: getattr(self, each.name) for each in fields(self)}
        return ",".join(
            f"{key}={_ranges(value) if isinstance(value, frozenset) else value}"
            for key, value in given.items()
            if value is not None
        )

    def cores_of_caller(self) -> Cores | None:
        """Give the cores of the calling thread, where they are said."""
        if self.caller != REST:
            assert not isinstance(self.caller, str)
            return self.caller
        rest = allowed_cores() - frozenset(self.cores or ())
        if not rest:
            raise UsageError(
                f"engines on cores {_ranges(self.cores or ())} leave no core to the caller.",
                f"This process may use {_ranges(allowed_cores())}.",
            )
        return rest

    def require_possible(self) -> None:
        """Try all of it on a thread that ends at once, so that a refusal changes nothing."""
        if self == Engines():
            return
        failures: list[UsageError] = []

        def attempt() -> None:
            try:
                self.place(0)
                move(0, self.cores_of_caller())
            except UsageError as error:
                failures.append(error)

        trial = threading.Thread(target=attempt)
        trial.start()
        trial.join()
        if failures:
            raise failures[0]

    def place(self, thread: int) -> None:
        """Give a thread, by the number the kernel knows it by, its cores and its urgency."""
        move(thread, self.cores)
        if self.policy is not None:
            try:
                os.sched_setscheduler(thread, POLICIES[self.policy], os.sched_param(0))
            except PermissionError as error:
                raise UsageError(f"this user may not choose the policy {self.policy!r}.") from error
        if self.nice is not None:
            try:
                os.setpriority(os.PRIO_PROCESS, thread, self.nice)
            except PermissionError as error:
                raise UsageError(
                    f"this user may not make threads more urgent: nice {self.nice}.",
                    "Use 0 to 19, or have RLIMIT_NICE (ulimit -e) raised.",
                ) from error


def engines_from(environment: Mapping[str, str]) -> Engines:
    """Give what the environment says; nothing in particular where it is silent."""
    try:
        return Engines.parse(environment.get(VARIABLE, ""))
    except UsageError as error:
        raise UsageError(f"{VARIABLE}: {error.message}", error.hint) from error


def engines_of(rank: int, engines: "Engines | Iterable[Engines] | None") -> Engines:
    """Give what a rank is told: the same as all, its own, or what the environment says."""
    if engines is None:
        return engines_from(os.environ)
    if isinstance(engines, Engines):
        return engines
    told = list(engines)
    if rank >= len(told):
        raise UsageError(f"{len(told)} Engines do not say those of rank {rank}.")
    return told[rank]


def allowed_cores() -> frozenset[int]:
    """Give the cores that threads of this process may be put on: its group's, not its own mask's.

    The kernel cuts a wish for every core down to what is allowed.
    """
    found: list[frozenset[int]] = []

    def ask() -> None:
        with suppress(OSError):
            os.sched_setaffinity(0, range(_num_cores()))
        found.append(frozenset(os.sched_getaffinity(0)))

    asking = threading.Thread(target=ask)
    asking.start()
    asking.join()
    return found[0]


def move(thread: int, cores: Cores | None) -> None:
    """Put a thread (0: the calling one) on these cores; None leaves it where it is."""
    if cores is None:
        return
    missing = sorted(core for core in cores if core >= _num_cores())
    if missing:
        raise UsageError(
            f"core {missing[0]} does not exist.",
            f"This machine has cores {_ranges(range(_num_cores()))}.",
        )
    refused = frozenset(cores) - allowed_cores()
    if refused:
        raise UsageError(
            f"core {_ranges(refused)} is not allowed to this process.",
            f"It may use {_ranges(allowed_cores())}, as its cgroup says.",
        )
    os.sched_setaffinity(thread, cores)


def _num_cores() -> int:
    return os.sysconf("SC_NPROCESSORS_CONF")


def _cores(cores: Cores | str | None, name: str) -> frozenset[int] | None:
    if cores is None:
        return None
    found = frozenset(cores) if not isinstance(cores, str) else _read_ranges(cores, name)
    if not found:
        raise UsageError(f"{name} is empty.", "Give one core or more, or leave it out.")
    for core in found:
        _require_whole(name, core, 0, _LAST_CORE)
    return found


def _require_whole(name: str, value: object, least: int, most: int) -> None:
    if value is None:
        return
    if not isinstance(value, int) or isinstance(value, bool) or not least <= value <= most:
        raise UsageError(f"{name} is {value!r}: expected a whole number from {least} to {most}.")


def _pair(part: str) -> tuple[str, str]:
    key, equals, word = part.partition("=")
    known = [each.name for each in fields(Engines)]
    if key not in known:
        raise UsageError(f"engines have no {key!r}.", nearest(key, known))
    if not equals or not word:
        raise UsageError(f"{key} has no value.", "Write it as number=2,cores=1,nice=10.")
    return key, word


def _value(key: str, word: str) -> Any:
    if key == "policy" or word == REST:
        return word
    if key in ("cores", "caller"):
        return _read_ranges(word, key)
    try:
        return int(word)
    except ValueError:
        raise UsageError(f"{key} is {word!r}: expected a whole number.") from None


def _read_ranges(text: str, name: str) -> frozenset[int]:
    try:
        pairs = [part.partition("-") for part in text.split("+")]
        spans = [(int(first), int(last if dash else first)) for first, dash, last in pairs]
    except ValueError:
        raise UsageError(
            f"{name} is {text!r}: expected cores.", "Write them as 1, as 0-3 or as 0-1+4."
        ) from None
    for _, last in spans:  # before they are listed
        _require_whole(name, last, 0, _LAST_CORE)
    return frozenset(core for first, last in spans for core in range(first, last + 1))


def _ranges(cores: Iterable[int]) -> str:
    """Write cores with runs joined.

    >>> _ranges({0, 1, 2, 5})
    '0-2+5'
    """
    runs: list[list[int]] = []
    for core in sorted(cores):
        if runs and core == runs[-1][1] + 1:
            runs[-1][1] = core
        else:
            runs.append([core, core])
    return "+".join(str(a) if a == b else f"{a}-{b}" for a, b in runs)
