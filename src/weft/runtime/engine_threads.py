"""Number, cores and priority of the threads that a world runs besides the calling one."""

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
_MOST = 64  # engines: more than any node has links
_NICEST = 19  # the lowest priority, nice(2)
_LAST_CORE = 1 << 16  # Linux on x86-64 is built for 8192 CPUs at most (NR_CPUS)

Cores = Collection[int]  # kept as a frozenset


@dataclass(frozen=True, slots=True)
class Engines:
    """The copy engines of a rank and its worker: threads besides the calling one.

    ``number`` engines share the copy and nic queues; without it every queue has its own.
    ``cores`` are those that engines and worker may use, ``nice`` (-20 to 19) and ``policy``
    (other, batch, idle) set their priority, and ``caller`` the cores of the calling thread: a
    set, or ``"rest"`` for all that the engines do not use. What is not given stays unchanged.
    """

    number: int | None = None
    cores: Cores | None = None
    nice: int | None = None
    policy: str | None = None
    caller: Cores | str | None = None

    def __post_init__(self) -> None:
        """Normalize the cores and check the ranges of all fields."""
        object.__setattr__(self, "cores", _cores(self.cores, "cores"))
        if self.caller != REST:
            object.__setattr__(self, "caller", _cores(self.caller, "caller"))
        elif self.cores is None:
            raise UsageError("caller: 'rest' needs cores.", "Pass the cores of the engines, too.")
        _require_whole("number", self.number, 1, _MOST)
        _require_whole("nice", self.nice, -_NICEST - 1, _NICEST)
        if self.policy is not None and self.policy not in POLICIES:
            raise UsageError(
                f"policy: unknown scheduling policy {self.policy!r}.",
                nearest(self.policy, POLICIES),
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
        """Return the fields that are set, in the form that ``parse`` reads."""
        given = {each.name: getattr(self, each.name) for each in fields(self)}
        return ",".join(
            f"{key}={_ranges(value) if isinstance(value, frozenset) else value}"
            for key, value in given.items()
            if value is not None
        )

    def cores_of_caller(self) -> Cores | None:
        """Return the cores of the calling thread, None if they are not set."""
        if self.caller != REST:
            assert not isinstance(self.caller, str)
            return self.caller
        rest = allowed_cores() - frozenset(self.cores or ())
        if not rest:
            raise UsageError(
                f"cores: engines on {_ranges(self.cores or ())} leave no core for the caller.",
                f"This process may use {_ranges(allowed_cores())}.",
            )
        return rest

    def require_possible(self) -> None:
        """Check on a short-lived thread that the system allows all settings."""
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
        """Set the cores and the priority of a thread, by its kernel thread id."""
        move(thread, self.cores)
        if self.policy is not None:
            try:
                os.sched_setscheduler(thread, POLICIES[self.policy], os.sched_param(0))
            except PermissionError as error:
                raise UsageError(f"policy: permission denied for {self.policy!r}.") from error
        if self.nice is not None:
            try:
                os.setpriority(os.PRIO_PROCESS, thread, self.nice)
            except PermissionError as error:
                raise UsageError(
                    f"nice: permission denied for {self.nice}.",
                    "Use 0 to 19, or raise RLIMIT_NICE (ulimit -e).",
                ) from error


def engines_from(environment: Mapping[str, str]) -> Engines:
    """Return the Engines of the environment variable WEFT_ENGINES, or the defaults."""
    try:
        return Engines.parse(environment.get(VARIABLE, ""))
    except UsageError as error:
        raise UsageError(f"{VARIABLE}: {error.message}", error.hint) from error


def engines_of(rank: int, engines: "Engines | Iterable[Engines] | None") -> Engines:
    """Return the Engines of a rank: common to all, its own, or those of the environment."""
    if engines is None:
        return engines_from(os.environ)
    if isinstance(engines, Engines):
        return engines
    given = list(engines)
    if rank >= len(given):
        raise UsageError(
            f"engines: no entry for rank {rank} (got {len(given)} entries).",
            "Pass one Engines for each rank, or one for all.",
        )
    return given[rank]


def allowed_cores() -> frozenset[int]:
    """Return the cores of this process's cgroup, whatever its own affinity mask is.

    A thread asks for every core; the kernel reduces that to what is allowed.
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
    """Pin a thread (0: the calling one) to these cores; None leaves it unchanged."""
    if cores is None:
        return
    missing = sorted(core for core in cores if core >= _num_cores())
    if missing:
        raise UsageError(
            f"cores: core {missing[0]} does not exist.",
            f"This machine has cores {_ranges(range(_num_cores()))}.",
        )
    refused = frozenset(cores) - allowed_cores()
    if refused:
        raise UsageError(
            f"cores: {_ranges(refused)} is not allowed for this process.",
            f"Use cores of its cgroup: {_ranges(allowed_cores())}.",
        )
    os.sched_setaffinity(thread, cores)


def _num_cores() -> int:
    return os.sysconf("SC_NPROCESSORS_CONF")


def _cores(cores: Cores | str | None, name: str) -> frozenset[int] | None:
    if cores is None:
        return None
    found = frozenset(cores) if not isinstance(cores, str) else _read_ranges(cores, name)
    if not found:
        raise UsageError(f"{name}: must not be empty.", f"Pass one core or more, or omit {name}.")
    for core in found:
        _require_whole(name, core, 0, _LAST_CORE)
    return found


def _require_whole(name: str, value: object, least: int, most: int) -> None:
    if value is None:
        return
    if not isinstance(value, int) or isinstance(value, bool) or not least <= value <= most:
        raise UsageError(f"{name}: expected an integer from {least} to {most} (got {value!r}).")


def _pair(part: str) -> tuple[str, str]:
    key, equals, word = part.partition("=")
    known = [each.name for each in fields(Engines)]
    if key not in known:
        raise UsageError(f"unknown setting {key!r}.", nearest(key, known))
    if not equals or not word:
        raise UsageError(f"{key}: the value is missing.", "Write it as number=2,cores=1,nice=10.")
    return key, word


def _value(key: str, word: str) -> Any:
    if key == "policy" or word == REST:
        return word
    if key in ("cores", "caller"):
        return _read_ranges(word, key)
    try:
        return int(word)
    except ValueError:
        raise UsageError(f"{key}: expected an integer (got {word!r}).") from None


def _read_ranges(text: str, name: str) -> frozenset[int]:
    try:
        pairs = [part.partition("-") for part in text.split("+")]
        spans = [(int(first), int(last if dash else first)) for first, dash, last in pairs]
    except ValueError:
        raise UsageError(
            f"{name}: expected cores (got {text!r}).", "Write them as 1, 0-3 or 0-1+4."
        ) from None
    for _, last in spans:  # before the ranges are expanded
        _require_whole(name, last, 0, _LAST_CORE)
    return frozenset(core for first, last in spans for core in range(first, last + 1))


def _ranges(cores: Iterable[int]) -> str:
    """Return cores as text, with consecutive ones as ranges.

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
