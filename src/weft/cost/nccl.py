"""Seconds of a library's collective: opaque kernels priced by curves fitted to measured tables.

    inside a node, measured   curves of the device, or of a sibling      (this file)
    between nodes, messages   rings, trees, channels over rails          (``nccl_algorithms``)

Inside a node NCCL sends chunks round rings, or in an all-to-all straight to each peer. Of n ranks
each moves chunks of c = size / n bytes in n - 1 steps, and what a step takes depends on c alone:
the protocol (LL, LL128, Simple), the number of channels and the depth of the pipeline all follow
from it. So

    seconds(n, size) = first(c) + (n - 1) * step(c)

with two rising curves a collective: ``first`` is launch, entry and a rank's own chunk, ``step``
what each further peer adds. Each is a chain of straight lines, a latency and a rate between two
chunk sizes, which is what a protocol is. Where the switch reduces (NVLink SHARP), the number of
ranks no longer counts and a curve over the whole size stands instead.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import lru_cache, partial
from itertools import pairwise
from math import prod
from typing import TYPE_CHECKING

import numpy as np

from weft.cost.nccl_algorithms import MESSAGES, RINGS, NodeNetwork, algorithm_seconds
from weft.cost.ranges import collective_term
from weft.errors import UnknownNameError, UsageError, nearest
from weft.hardware import platform as measured_on
from weft.hardware.libraries import algorithm_fit, library, library_devices, library_names
from weft.hardware.topology import exchange_rate, latencies
from weft.units import format_size

if TYPE_CHECKING:
    from collections.abc import Callable

    from weft.hardware import Level, Platform
    from weft.hardware.libraries import AlgorithmFit, Curve, Fit, Library

INTEGERS = ("int8", "uint8", "bool")
_PCIE = 64e9  # bytes a second: switches of PCIe 5 and below, which do not reduce
SIBLINGS = {"b200": "gb200", "gb200": "b200"}  # the same chip and links, in another machine
_BULK = 1 << 34  # bytes whose collective is all bytes: 16 GiB
_UNSEEN = 1.5  # times a range where a library, or a network, of that kind was never measured


@dataclass(frozen=True, slots=True)
class LibraryPrice:
    """Seconds of one collective, the fit they come from, and what to keep in mind about them.

    Measured times lie between ``low`` and ``high`` times ``seconds`` in four of five cases.
    ``overhead`` is the share of ``seconds`` that bytes do not take.
    """

    seconds: float
    fit: Fit | AlgorithmFit
    basis: str
    note: str
    low: float
    high: float
    overhead: float


def library_price(
    platform: Platform,
    kind: str,
    nbytes: int,
    *,
    name: str = "nccl",
    version: str | None = None,
    dtype: str = "float16",
) -> LibraryPrice:
    """Price ``kind`` of ``nbytes``, counted as nccl-tests does, among all ranks of ``platform``.

    Without a version it is the newest that was measured. The part of a time that grows with the
    size follows the rate of the links, compared with the machine that was measured.
    """
    other = _fallback(platform, kind, name)
    if other:
        found = library_price(platform, kind, nbytes, name=other, dtype=dtype)
        notes = f"{name} leaves it to {other}", found.note
        return replace(found, note="; ".join(filter(None, notes)))
    if platform.num_nodes > 1 or _has_no_table(platform, kind, name):
        return _by_algorithms(platform, kind, nbytes, name, version)
    known, num_ranks = _library_on(platform, name), platform.num_ranks
    if version is not None and (older := _measured_before(known, version)):
        here = library_price(platform, kind, nbytes, name=name, version=older, dtype=dtype)
        both = library(name, SIBLINGS[known.device])
        now, then = (
            fitted_seconds(_fit(both, kind, each, dtype, num_ranks), num_ranks, nbytes)
            for each in (version, older)
        )
        note = f"{older} here, changed as {version} changes it on {both.device}"
        return replace(here, seconds=here.seconds * now / then, note=note)
    fit = _fit(known, kind, version, dtype, num_ranks)
    slower = 1.0
    if known not in platform.libraries:
        links, measured = links_of(platform, kind), _measured_links(known.node, num_ranks, kind)
        slower = measured / links
        if links < _PCIE:
            fit = replace(fit, in_switch=())
    seconds_of = partial(fitted_seconds, fit, num_ranks, slower=slower)
    wider = _UNSEEN if num_ranks > max(fit.ranks) or known.basis == "inherited" else 1.0
    term = "servers" if known.fallback else "nccl"
    note = _note(known, fit, nbytes, num_ranks)
    overhead = overhead_share(seconds_of, nbytes)
    factors = collective_term(term, overhead).times(wider).factors
    return LibraryPrice(seconds_of(nbytes), fit, known.basis, note, *factors, overhead)


def overhead_share(seconds_of: Callable[[int], float], nbytes: int) -> float:
    """Return the share of a collective that its bytes do not take at the rate of large ones."""
    seconds = seconds_of(nbytes)
    return max(0.0, 1 - nbytes / _BULK * seconds_of(_BULK) / seconds) if seconds else 0.0


def _measured_before(known: Library, version: str) -> str:
    """Return the newest version here that a sibling has as well as ``version``, "" for none."""
    sibling = SIBLINGS.get(known.device, "")
    if version in known.versions or sibling not in library_devices(known.name):
        return ""
    shared = library(known.name, sibling).versions
    if version not in shared:
        return ""
    return next((each for each in reversed(known.versions) if each in shared), "")


def own_seconds(platform: Platform, price: LibraryPrice) -> float:
    """Return the price of the kernel itself, once it is launched and ranks have met.

    What was measured includes both, and the simulator counts them by itself.
    """
    device, others = platform.require_device(), np.arange(1, platform.num_ranks)
    rendezvous = latencies(platform.levels, np.zeros_like(others), others).max() + device.signal
    return max(0.0, price.seconds - device.launch - float(rendezvous))


def _fallback(platform: Platform, kind: str, name: str) -> str:
    """Return the library to which a server leaves a collective; "" where it has its own kernel."""
    if name not in library_names() or platform.device is None or platform.libraries:
        return ""
    if not any(library(name, each).fallback for each in library_devices(name)[:1]):
        return ""
    known = _library_on(platform, name)
    alone = platform.num_nodes == 1 and known.serves(kind, platform.num_ranks)
    return "" if alone else known.fallback


def _has_no_table(platform: Platform, kind: str, name: str) -> bool:
    """Return whether a collective inside a node is priced by algorithms: it has no table.

    Rings of NVLink are those of the model; what RCCL does inside a node was not logged.
    """
    if any(measured.name == name for measured in platform.libraries):
        return False
    is_ring = platform.device is not None and platform.device.vendor == "NVIDIA"
    return kind in ("send", "recv") or (is_ring and kind in ("broadcast", "reduce"))


def _by_algorithms(
    platform: Platform, kind: str, nbytes: int, name: str, version: str | None
) -> LibraryPrice:
    """Price what a library does between nodes, and messages, by its algorithms."""
    fit = algorithm_fit(name)
    if fit is None or platform.device is None or platform.device.is_core:
        raise UsageError(
            f"{name} was measured inside one node, {platform.name} has {platform.num_nodes}",
            f"Use at most {platform.node_size} ranks, or an algorithm such as hierarchical.",
        )
    if kind not in (*RINGS, *MESSAGES):
        raise UsageError(
            f"{name} has no algorithm for {kind}", f"Known: {', '.join((*RINGS, *MESSAGES))}."
        )
    if version not in (None, fit.version):
        raise UsageError(
            f"{name} {version} was not measured between nodes", f"Measured: {fit.version}."
        )
    network = network_of(platform, kind)
    seconds_of = partial(algorithm_seconds, network, kind, coefficients=fit.coefficients)
    notes, wider = [f"algorithms of {name} {fit.version}, fitted on H100"], 1.0
    if platform.device.vendor != "NVIDIA":
        notes.append("RCCL, by NCCL's algorithms: no log of it")
        wider = _UNSEEN
    overhead = overhead_share(seconds_of, nbytes)
    factors = collective_term("nccl", overhead).times(wider).factors
    return LibraryPrice(seconds_of(nbytes), fit, "predicted", "; ".join(notes), *factors, overhead)


def network_of(platform: Platform, kind: str) -> NodeNetwork:
    """Return what NCCL sees of a platform: nodes, GPUs of each, and the rates of their links."""
    inner, outer = (
        tuple(level for level in part if level.size > 1)
        for part in (
            platform.levels[: platform.node_levels],
            platform.levels[platform.node_levels :],
        )
    )
    nic = min((level.rate for level in outer), default=float("inf"))
    return NodeNetwork(
        platform.num_nodes,
        platform.node_size,
        nic,
        links_of(platform, kind) if inner else float("inf"),
        min((level.link_rate for level in inner), default=float("inf")),
    )


@lru_cache
def _measured_links(node: str, num_ranks: int, kind: str) -> float:
    """Return the links of the first ranks of a machine of the catalogue, read once."""
    machine = measured_on(node)
    return links_of(machine.resized(min(num_ranks, machine.num_ranks)), kind)


def links_of(platform: Platform, kind: str) -> float:
    """Return the rate at which a rank of a node exchanges bytes with the others in a collective.

    Where copies go through the host a rank has one port, and its slowest level is what a
    collective waits for. Otherwise the levels of a node limit each other:

    - an all-to-all sends as much to each rank, and the busiest level decides;
    - a ring crosses each level as often as it likes, but leaves a group of s ranks with one of s
      hops at least. So the levels from each one outwards carry that share of all bytes or more.

    Either way a rank sends no faster than its port: that of a switch, or all links of a mesh.
    """
    node = platform.levels[: platform.node_levels]
    levels = tuple(level for level in node if level.size > 1)
    if not levels:
        return max(level.rate for level in platform.levels)
    if platform.staged:
        return min(level.rate for level in levels)
    if kind == "all_to_all":
        return min(exchange_rate(levels), _port(levels))
    sizes = [level.size for level in levels]
    return min(prod(sizes[:inner]) * _port(levels[inner:]) for inner in range(len(levels)))


def _port(levels: tuple[Level, ...]) -> float:
    """Return the rate at which a rank sends: its links on meshes inside each other add up.

    The port of a switch carries what goes on to the levels around it.
    """
    rate = levels[0].rate
    for inner, outer in pairwise(levels):
        if not inner.kind == outer.kind == "mesh":
            break
        rate += outer.rate
    return rate


def fitted_seconds(fit: Fit, num_ranks: int, nbytes: int, *, slower: float = 1.0) -> float:
    """Return the duration that a fit predicts; ``slower`` stretches what grows with the size."""
    if fit.in_switch and num_ranks >= max(fit.ranks):
        inside = on_curve(fit.in_switch, max(nbytes, fit.in_switch_from), slower)
        if nbytes >= fit.in_switch_from:
            return inside
        return min(inside, _by_steps(fit, num_ranks, nbytes, slower))
    return _by_steps(fit, num_ranks, nbytes, slower)


def _by_steps(fit: Fit, num_ranks: int, nbytes: int, slower: float) -> float:
    chunk = nbytes / num_ranks
    first = on_curve(fit.first, chunk, slower)
    return first + (num_ranks - 1) * on_curve(fit.step, chunk, slower) if fit.step else first


def on_curve(curve: Curve, nbytes: float, slower: float = 1.0) -> float:
    """Read a curve at ``nbytes``; what it has risen since its first place takes ``slower``.

    >>> on_curve(((100, 1.0), (200, 2.0)), 150), on_curve(((100, 1.0), (200, 2.0)), 300, 2.0)
    (1.5, 5.0)
    """
    (left, low), latency = curve[0], curve[0][1]
    if nbytes <= left or len(curve) == 1:
        return latency
    for right, high in curve[1:]:
        rate = (high - low) / (right - left)
        if nbytes <= right:
            break
        left, low = right, high
    return latency + slower * (high + rate * (nbytes - right) - latency)


def _library_on(platform: Platform, name: str) -> Library:
    for measured in platform.libraries:
        if measured.name == name:
            return measured
    if name not in library_names():
        raise UnknownNameError(f"unknown library {name!r}", nearest(name, library_names()))
    if platform.device is None:
        raise UsageError(
            f"{name} runs on devices, {platform.name} is a network without any",
            f"Use a machine with one of {', '.join(library_devices(name))}.",
        )
    return library(name, platform.device.name, platform.device.like)


def _fit(known: Library, kind: str, version: str | None, dtype: str, num_ranks: int) -> Fit:
    kinds = tuple(dict.fromkeys(fit.collective for fit in known.fits))
    if kind not in kinds:
        raise UsageError(
            f"{known.name} on {known.device} was not measured for {kind}",
            f"Measured: {', '.join(kinds)}.",
        )
    if version is not None and version not in known.versions:
        raise UsageError(
            f"{known.name} {version} was not measured on {known.device}",
            f"Measured: {', '.join(known.versions)}.",
        )
    dtypes = ("any", "int8" if dtype in INTEGERS else "float")
    fits = [f for f in known.fits if f.collective == kind and f.dtypes in dtypes]
    order = {each: index for index, each in enumerate(known.versions)}
    fits.sort(key=lambda fit: order[fit.version])
    chosen = [f for f in fits if version in (None, f.version) and f.covers(num_ranks)]
    if not chosen:
        counts = sorted({n for f in fits if version in (None, f.version) for n in f.ranks})
        raise UsageError(
            f"{known.name} {version or ''} {kind} on {known.device} was not measured on "
            f"{num_ranks} ranks",
            f"Measured: {', '.join(map(str, counts)) or 'only by other versions'}.",
        )
    return chosen[-1]


def _note(known: Library, fit: Fit, nbytes: int, num_ranks: int) -> str:
    notes = []
    if known.basis == "inherited":
        notes.append(f"inherited: {known.source}")
    if not known.smallest <= nbytes <= known.largest:
        sizes = f"{format_size(known.smallest)} to {format_size(known.largest)}"
        notes.append(f"outside measured sizes ({sizes})")
    if num_ranks not in fit.ranks:
        where = "beyond" if num_ranks > max(fit.ranks) else "between"
        notes.append(f"{where} measured numbers of ranks ({', '.join(map(str, fit.ranks))})")
    return "; ".join(notes)
