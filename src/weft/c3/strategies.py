"""Strategies: how one pair of a GEMM and a collective is carried out, as a Schedule.

The computation runs on ``stream0``, a collective kernel on ``stream1``, copies on engines. Both
are launched by the rank's host thread, one after the other: that order is the whole difference
between ``concurrent`` and ``priority``.
"""

from collections.abc import Callable
from dataclasses import replace

from weft.c3.scenarios import Gemm, Scenario
from weft.collectives import collective, dma_per_rank
from weft.cost import Grid, gemm_grid
from weft.errors import UnknownNameError, UsageError, nearest
from weft.hardware import Device, Platform
from weft.hardware.dtypes import product_bytes
from weft.schedule import (
    SELF,
    Command,
    Cost,
    Kernel,
    Launch,
    Program,
    Queue,
    Repeat,
    Schedule,
    Submit,
)
from weft.schedule.strategy import STRATEGIES as ALL
from weft.schedule.strategy import Strategy
from weft.simulator import collective_units

STRATEGIES = tuple(name for name, strategy in ALL.items() if strategy.of_pairs)
ENGINES: dict[str, Callable[..., Schedule]] = {
    "all_gather": dma_per_rank.all_gather,
    "all_to_all": dma_per_rank.all_to_all,
    "reduce_scatter": dma_per_rank.reduce_scatter,
    "all_reduce": dma_per_rank.all_reduce,
    "broadcast": dma_per_rank.broadcast,
}
COLLECTIVES = tuple(ENGINES)
COMPUTE, COMM = "stream0", "stream1"


def masks(device: Device) -> tuple[int, ...]:
    """Return the sizes of masks: doublings of the grain, up to half of the units of the device.

    8, 16, 32, 64 and 128 on MI300X, as in the published study.
    """
    sizes = []
    units = device.unit_grain
    while units <= device.units // 2:
        sizes.append(units)
        units *= 2
    return tuple(sizes)


def check_choice(choice: Strategy, kind: str, platform: Platform) -> None:
    """Raise if the hardware cannot do it, with what it can do."""
    device = platform.require_device()
    if choice.name not in STRATEGIES:
        hint = nearest(choice.name, STRATEGIES)
        raise UnknownNameError(f"unknown strategy {choice.name!r}", hint)
    if kind not in COLLECTIVES:
        known = f"Known: {', '.join(COLLECTIVES)}."
        raise UsageError(f"kind: weft does not overlap {kind!r} with a GEMM", known)
    if choice.kind.by_engines and (why := device.engine_refusal(kind)):
        raise UsageError(
            f"{choice.name} does not apply on {platform.name}: {why}",
            "Use serial, concurrent, priority or partition, or a platform such as mi300x-8.",
        )
    if choice.kind.masks and not masks(device):
        raise UsageError(
            f"{choice.name} does not apply on {platform.name}: a mask needs more than its "
            f"{device.units} unit{'s' if device.units > 1 else ''}",
            "Use serial, concurrent or priority, or a platform such as mi300x-8.",
        )
    if platform.num_nodes > 1:
        raise UsageError(
            f"platform: expected one node (got {platform.name} with {platform.num_nodes})",
            "Use the platform of one node, as mi300x-8.",
        )
    if platform.num_ranks < 2:
        raise UsageError(
            f"platform: expected 2 ranks or more (got {platform.name} with {platform.num_ranks})",
            "Use the platform of a whole node, as mi300x-8.",
        )
    if choice.units is not None:
        _check_units(choice, device)


def _check_units(choice: Strategy, device: Device) -> None:
    units, grain = choice.units or 0, device.unit_grain
    if not choice.kind.masks:
        raise UsageError(f"{choice.name} masks no units", "Give units to partition only.")
    largest = (device.units - 1) // grain * grain
    if not 0 <= units <= largest:
        raise UsageError(
            f"units: a mask must leave units of {device.name} (got {units} of {device.units})",
            f"Use a multiple of {grain} up to {largest}.",
        )
    if units % grain:
        below = units // grain * grain
        raise UsageError(
            f"units: must be a multiple of {grain}, the grain of {device.name} (got {units})",
            f"Use {below or grain} or {below + grain}.",
        )


def grid_of(gemm: Gemm, device: Device) -> Grid:
    """Return the tiles of a GEMM on a device."""
    return gemm_grid((gemm.m, gemm.n, gemm.k), gemm.dtype, device, gemm.family)


def without_units(gemm: Gemm, lost: int, device: Device) -> float:
    """Return the seconds of a GEMM alone when ``lost`` units are taken from it."""
    return grid_of(gemm, device).alone(max(1, device.units - lost), device)


def gemm_kernel(gemm: Gemm, device: Device) -> Kernel:
    """Return the GEMM as a command."""
    grid = grid_of(gemm, device)
    return Kernel(
        "gemm",
        Cost(
            gemm.family,
            (gemm.m, gemm.n, gemm.k),
            gemm.dtype,
            flops=2.0 * gemm.m * gemm.n * gemm.k,
            nbytes=product_bytes(gemm.dtype, gemm.m, gemm.n, gemm.k),
            tiles=grid.tiles,
        ),
    )


def pair_schedule(scenario: Scenario, choice: Strategy, platform: Platform) -> Schedule:
    """Build the schedule of the scenario by a strategy."""
    check_choice(choice, scenario.collective, platform)
    kernel = gemm_kernel(scenario.gemm, platform.require_device())
    if choice.kind.by_engines:
        return _with_engines(scenario, choice, platform, kernel)
    name = f"{choice} {scenario.collective} with {scenario.gemm}"
    units = comm_units(scenario.collective, choice, platform)
    inner = kernel_collective(scenario.collective, scenario.nbytes, platform, units)
    if choice.kind.exclusive:
        return _joined(inner, name, lambda comm: _one_stream(kernel, comm))
    first = launches_comm_first(choice, units, kernel.cost.tiles)
    masked = _unit_masks(choice, platform)
    return _joined(inner, name, lambda comm: _two_streams(kernel, comm, masked, comm_first=first))


def compute_alone(scenario: Scenario, platform: Platform) -> Schedule:
    """Return the GEMM alone."""
    kernel = gemm_kernel(scenario.gemm, platform.require_device())
    queues = (Queue("host", (Submit(SELF, COMPUTE, 1),)), Queue(COMPUTE, (kernel,)))
    ranks = platform.num_ranks
    return Schedule(f"{scenario.gemm}", ranks, (Program(range(ranks), queues),))


def comm_alone(scenario: Scenario, platform: Platform) -> Schedule:
    """Return the collective kernel alone."""
    kind = scenario.collective
    units = collective_units(platform, kind)
    inner = kernel_collective(kind, scenario.nbytes, platform, units)
    host = Queue("host", (Submit(SELF, COMM, 1),))
    return _joined(inner, inner.name, lambda comm: (host, replace(comm, name=COMM)))


def kernel_collective(kind: str, nbytes: int, platform: Platform, units: int) -> Schedule:
    """Build a collective by units: direct, all peers at once."""
    built = collective(kind, "direct", num_ranks=platform.num_ranks, nbytes=nbytes)

    def told(command: Command | Repeat) -> Command | Repeat:
        if not isinstance(command, Launch):
            return command
        return replace(command, units=units, workgroups=units, family=kind)

    def queue_told(queue: Queue) -> Queue:
        return replace(queue, commands=tuple(told(command) for command in queue.commands))

    programs = (
        replace(program, queues=tuple(queue_told(queue) for queue in program.queues))
        for program in built.programs
    )
    return replace(built, programs=tuple(programs))


def comm_units(kind: str, choice: Strategy, platform: Platform) -> int:
    """Return the units of a collective kernel: a wider mask does not give it more workgroups."""
    filled = collective_units(platform, kind)
    return min(filled, choice.units) if choice.kind.masks and choice.units else filled


def launches_comm_first(choice: Strategy, units: int, tiles: int) -> bool:
    """Return whether the collective goes first: with priority, if it has fewer workgroups."""
    # A kernel that is launched first takes the slots it wants; one with more workgroups than the
    # other leaves it none.
    return choice.kind.first and units <= tiles


Mask = tuple[int, int]


def _unit_masks(choice: Strategy, platform: Platform) -> tuple[Mask | None, Mask | None]:
    """Return the units of the computation and of the collective."""
    if not choice.kind.masks or not choice.units:
        return None, None
    total = platform.require_device().units
    return (0, total - choice.units), (total - choice.units, total)


def _joined(inner: Schedule, name: str, queues: Callable[[Queue], tuple[Queue, ...]]) -> Schedule:
    """Return the programs of a collective, each with its stream among ``queues``."""
    programs = []
    for program in inner.programs:
        (comm,) = program.queues
        programs.append(Program(program.ranks, queues(comm)))
    return replace(inner, name=name, programs=tuple(programs))


def _one_stream(kernel: Kernel, comm: Queue) -> tuple[Queue, ...]:
    commands = (kernel, *comm.commands)
    return (
        Queue("host", (Submit(SELF, COMPUTE, len(commands)),)),
        Queue(COMPUTE, commands),
    )


def _two_streams(
    kernel: Kernel,
    comm: Queue,
    units: tuple[Mask | None, Mask | None],
    *,
    comm_first: bool,
) -> tuple[Queue, ...]:
    submits = (Submit(SELF, COMPUTE, 1), Submit(SELF, COMM, len(comm.commands)))
    return (
        Queue("host", submits[::-1] if comm_first else submits),
        Queue(COMPUTE, (kernel,), units=units[0]),
        replace(comm, name=COMM, units=units[1]),
    )


def _with_engines(
    scenario: Scenario, choice: Strategy, platform: Platform, kernel: Kernel
) -> Schedule:
    """Build the schedule in which one thread launches the GEMM, then feeds the engines."""
    inner = engine_collective(scenario, platform)
    name = f"{choice} {scenario.collective} with {scenario.gemm}"
    mask, _ = _unit_masks(choice, platform)
    programs = []
    for program in inner.programs:
        host, *others = program.queues
        # In this order: building the commands of the engines would delay the GEMM.
        host = replace(host, commands=(Submit(SELF, COMPUTE, 1), *host.commands))
        queues = (host, Queue(COMPUTE, (kernel,), units=mask), *others)
        programs.append(Program(program.ranks, queues))
    return replace(inner, name=name, programs=tuple(programs))


def engine_collective(scenario: Scenario, platform: Platform) -> Schedule:
    """Return the collective by engines, alone."""
    return ENGINES[scenario.collective](platform.num_ranks, scenario.nbytes)
