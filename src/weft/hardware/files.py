"""From a word on the command line to a Platform: catalogue, clusters, files, bare networks."""

import os
import re
import sys
from functools import lru_cache
from importlib import import_module
from pathlib import Path
from typing import Any

import msgspec

from weft.errors import FormatError, PlatformError, WeftError, nearest
from weft.hardware.curves import Library
from weft.hardware.device import (
    Cores,
    Device,
    Dma,
    Flops,
    Kernels,
    Lookups,
    Power,
    Reducing,
    WorkingSet,
)
from weft.hardware.machine import Machine, this_machine
from weft.hardware.measured import CodecRate, KernelFit, MeasuredNoise, OpCostModel, TorchHost
from weft.hardware.network import Level, is_network, level_kind, parse_network
from weft.hardware.platform import Host, Nic, Platform
from weft.hardware.quantity import COUNT, SIZE, Place, Reader, Record, Source, Table
from weft.hardware.recorded_device import Exchange, Overheads, Products, Recorded
from weft.units import file_name, parse_rate

# The reader of TOML came into the standard library with Python 3.11; before that it was tomli.
tomllib = import_module("tomllib" if sys.version_info >= (3, 11) else "tomli")

CATALOGUE = Path(__file__).parent / "catalogue"
_TABLES: dict[type[Any], str] = {Flops: "a table of dtypes", Reducing: "a table of dtypes"}
_CLUSTER = re.compile(r"(.+)x([0-9]{1,9})")


def platform(spec: str | Path, *, num_ranks: int | None = None) -> Platform:
    """Find a platform: a catalogue name, a cluster of one, ``here``, a file or a bare network.

    With ``num_ranks`` it is cut to its first ranks.
    """
    found = _find(spec, ())
    return found if num_ranks is None else found.resized(num_ranks)


def find_device(spec: str | Path) -> Device:
    """Find a device by its name in the catalogue, or the device of a platform."""
    if str(spec) in device_names() and str(spec) not in platform_names():
        found = _device(Reader(f"{spec}.toml"), str(spec))
        assert found is not None  # only a platform without a device has none
        return found
    return platform(spec).require_device()


def device_names() -> tuple[str, ...]:
    """List the devices of the catalogue. Adding a file adds a name."""
    return tuple(sorted(path.stem for path in (CATALOGUE / "devices").glob("*.toml")))


def platform_names() -> tuple[str, ...]:
    """List the machines of the catalogue. Adding a file adds a name."""
    return tuple(sorted(path.stem for path in (CATALOGUE / "nodes").glob("*.toml")))


def here_path() -> Path:
    """Return where the calibration of this machine is kept."""
    home = os.environ.get("XDG_CONFIG_HOME") or Path.home() / ".config"
    return Path(home) / "weft" / "here.toml"


def is_calibrated() -> bool:
    """Return whether this machine was calibrated, by a user whose files this one may read."""
    return os.access(here_path(), os.R_OK)


def _find(spec: str | Path, seen: tuple[Path, ...]) -> Platform:
    if isinstance(spec, Path) or spec.endswith(".toml"):
        return _from_file(Path(spec), seen)
    if is_network(spec):
        return _bare_network(spec)
    if spec == "here":
        return _here(seen)
    node, count = _node_and_count(spec)
    if count == 0:
        raise PlatformError(f"{spec!r} is a cluster of 0 nodes", f"Use {node}x1 or more.")
    return _from_catalogue(node) if count is None else _from_catalogue(node).cluster(count)


def _node_and_count(name: str) -> tuple[str, int | None]:
    """Split ``mi300x-8x16`` into the node and how many; a plain node has no count."""
    names = platform_names()
    if name in names:
        return name, None
    match = _CLUSTER.fullmatch(name)
    if match and match[1] in names:
        return match[1], int(match[2])
    clusters = [f"{each}x{match[2]}" for each in names] if match else []
    if name in device_names():
        machines = [each for each in names if _device_name(each) == name]
        raise PlatformError(
            f"{name!r} is a device: expected a machine that has it",
            f"Use {' or '.join(machines) or 'a .toml file that names it'}.",
        )
    raise PlatformError(
        f"unknown platform {name!r}: expected a name, a cluster as mi300x-8x16, a .toml file "
        "or a network as switch(8)@400GiB/s,936ns",
        nearest(name, ["here", *names, *clusters]),
    )


def _device_name(node: str) -> object:
    """Return the device that a file of the catalogue names; None where it extends another file."""
    return read_toml(CATALOGUE / "nodes" / f"{node}.toml").get("device")


def _from_catalogue(node: str) -> Platform:
    return _from_file(CATALOGUE / "nodes" / f"{node}.toml", ())


def _here(seen: tuple[Path, ...]) -> Platform:
    if not is_calibrated():
        raise PlatformError(
            "this machine was not calibrated yet, so there is no platform 'here'",
            "Run: weft calibrate. Or use the platform cpu.",
        )
    found = _from_file(here_path(), seen)
    if found.machine is not None and not found.machine.is_like(this_machine()):
        raise PlatformError(
            f"the platform 'here' was measured on another machine ({found.machine}; this is "
            f"{this_machine()})",
            "Run: weft calibrate.",
        )
    return found


def _bare_network(spec: str) -> Platform:
    levels = parse_network(spec)
    sources = {
        f"levels.{i}.{key}": Source("given", "bare network")
        for i, level in enumerate(levels)
        for key in ("rate", "latency")
        if key == "rate" or level.latency
    }
    return Platform(spec, "bare network", levels=levels, sources=sources)


def _from_file(path: Path, seen: tuple[Path, ...]) -> Platform:
    if path.resolve() in seen:
        raise PlatformError(f"{path.name} extends itself", "Remove one extends of the circle.")
    table = read_toml(path)
    if "extends" in table:
        table = _extended(table, path, (*seen, path.resolve()))
    return platform_from_table({"name": file_name(path.stem), **table}, path.name)


def read_toml(path: Path, refused: type[PlatformError | FormatError] = PlatformError) -> Table:
    """Read a file as TOML or say why it is not."""
    try:
        table: Table = tomllib.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError as error:
        raise refused(
            f"there is no file {path}",
            nearest(path.name, [each.name for each in path.parent.glob("*.toml")])
            or "Check the path.",
        ) from error
    except OSError as error:
        raise refused(f"{path} cannot be read: {error.strerror}") from error
    except (UnicodeDecodeError, tomllib.TOMLDecodeError, RecursionError) as error:
        raise refused(f"{path} is not TOML: {error}") from error
    return table


def _extended(table: Table, path: Path, seen: tuple[Path, ...]) -> Table:
    """Put the keys of a file over those of the platform it extends."""
    base = Reader(path.name).words(table.pop("extends"), Place(path.name, "extends"))
    spec = path.parent / base if base.endswith(".toml") else base
    found, over = _find(spec, seen).to_table(), {"name": file_name(path.stem), **table}
    device = over.get("device")
    if (
        isinstance(device, dict)
        and "extends" not in device
        and isinstance(found.get("device"), dict)
    ):
        over["device"] = _renamed(found["device"], device)
    extended: Table = merged(found, over)
    return extended


def _renamed(base: Table, over: Table) -> Table:
    """Return the keys over those of a device; one with a new name is like it by default.

    A device that states a rating alone achieves as much of it as the other one does of its own.
    """
    if over.get("name", base["name"]) == base["name"]:
        return over
    made = {"like": base.get("like") or base["name"], **over}
    made |= _achieved(base, over, "memory_rated", "memory_rate", base["name"])
    flops, known = over.get("flops"), base.get("flops")
    if isinstance(flops, dict) and isinstance(known, dict):
        made["flops"] = {
            dtype: rates | _achieved(known.get(dtype), rates, "rated", "achieved", base["name"])
            if isinstance(rates, dict)
            else rates
            for dtype, rates in flops.items()
        }
    return made


def _achieved(base: Any, over: Table, rated: str, achieved: str, name: str) -> Table:
    """Return the achieved rate that follows from a rating, if the file states that alone."""
    if not isinstance(base, dict) or rated not in over or achieved in over:
        return {}
    values = [_number(each) for each in (over[rated], base.get(rated), base.get(achieved))]
    numbers = [each for each in values if each is not None and each > 0]
    if len(numbers) < len(values):
        return {}
    mine, of, reached = numbers
    source = f"{100 * reached / of:.0f} % of the rating, as {name}"
    return {achieved: {"value": mine * reached / of, "basis": "derived", "source": source}}


def _number(entry: Any) -> float | None:
    """Return the number of an entry; None if it is none, which its reader will say."""
    value = entry.get("value") if isinstance(entry, dict) else entry
    if isinstance(value, str):
        try:
            return parse_rate(value)
        except WeftError:
            return None
    return float(value) if isinstance(value, (int, float)) else None


def merged(base: Any, over: Any) -> Any:
    """Lay one value over another: tables key by key, lists place by place.

    A number is replaced as a whole, and so is a table that says itself what it extends.
    """
    whole = {"value", "extends"}
    if isinstance(base, dict) and isinstance(over, dict) and whole.isdisjoint({*base, *over}):
        both = {key: merged(base[key], over[key]) for key in base.keys() & over.keys()}
        return {**base, **over, **both}
    if isinstance(base, list) and isinstance(over, list):
        pairs = [merged(mine, yours) for mine, yours in zip(base, over, strict=False)]
        return pairs + base[len(over) :] + over[len(base) :]
    return over


def platform_from_table(table: Table, file: str) -> Platform:
    """Build a platform from what a file holds; ``file`` is the name that errors show."""
    reader = Reader(file)
    levels = _levels(reader, table.get("levels"))
    host = _part(reader, Host, table, "host")
    return reader.record(
        Platform,
        table,
        reader.root,
        staged=_staged(reader, table, host),
        node_levels=_node_levels(reader, table, levels),
        device=_device(reader, table.get("device")),
        levels=levels,
        host=host,
        nic=_part(reader, Nic, table, "nic"),
        machine=_part(reader, Machine, table, "machine"),
        recorded=_recorded(reader, table["recorded"]) if "recorded" in table else None,
        torch=_measured(reader, table, "torch", TorchHost, None),
        libraries=_measured(reader, table, "libraries", tuple[Library, ...], ()),
        codecs=_measured(reader, table, "codecs", tuple[CodecRate, ...], ()),
        noise=_measured(reader, table, "noise", MeasuredNoise, None),
        sources=reader.sources,
    )


def _staged(reader: Reader, table: Table, host: Host | None) -> bool:
    staged = table.get("staged", False)
    if not isinstance(staged, bool):
        raise reader.root.at("staged").wrong(staged, "true or false")
    if staged and host is None:
        raise reader.root.at("host").missing("a table, because staged = true copies through it")
    return staged


def _node_levels(reader: Reader, table: Table, levels: tuple[Level, ...]) -> int:
    value, place = table.get("node_levels", 1), reader.root.at("node_levels")
    expected = f"a whole number from 1 to the number of levels, {len(levels)}"
    if reader.count(value, place, expected) > len(levels):
        raise place.wrong(value, expected)
    return int(value)


def _part(reader: Reader, cls: type[Any], table: Table, key: str) -> Any:
    """Read a table that need not be there."""
    return reader.record(cls, table[key], reader.root.at(key)) if key in table else None


def _levels(reader: Reader, levels: object) -> tuple[Level, ...]:
    place = reader.root.at("levels")
    if levels is None:
        raise place.missing("one [[levels]] table per level, from the inside out")
    if not isinstance(levels, list) or not levels:
        raise place.wrong(levels, "one [[levels]] table per level, from the inside out")
    return tuple(_level(reader, level, place.at(i)) for i, level in enumerate(levels))


def _level(reader: Reader, level: object, place: Place) -> Level:
    table = reader.table(level, place, ["kind", "size", "rate", "latency", "rated"])
    for key, expected in (("kind", "switch, ring or mesh"), ("size", COUNT.expected)):
        if key not in table:
            raise place.at(key).missing(expected)
    size = reader.count(table["size"], place.at("size"))
    kind = level_kind(table["kind"], f"{place.file}: {place.key}")
    return reader.record(Level, table, place, kind=kind, size=size)


@lru_cache
def catalogue_device(name: str) -> Device:
    """Return a device of the catalogue by its name."""
    found = _device(Reader(f"{name}.toml"), name)
    assert found is not None
    return found


def _device(reader: Reader, device: object) -> Device | None:
    """Read a device: absent, a name of the catalogue, or a table that may extend one."""
    place = reader.root.at("device")
    if device is None:
        return None
    if isinstance(device, str):
        device = _catalogue_device(device, place)
    elif isinstance(device, dict) and "extends" in device:
        device = _extended_device(reader, device, place)
    if isinstance(device, dict) and "like" in device:
        _known_device(reader.words(device["like"], place.at("like")), place.at("like"))
    if not isinstance(device, dict):
        raise place.wrong(device, "the name of a device or a [device] table")
    power = reader.record(Power, _required(device, "power", place), place.at("power"))
    dma, shared = device.get("dma"), device.get("shared")
    return reader.record(
        Device,
        device,
        place,
        flops=_records(reader, Flops, _required(device, "flops", place), place.at("flops")),
        power=power,
        dma=None if dma is None else reader.record(Dma, dma, place.at("dma")),
        kernels=reader.record(Kernels, device.get("kernels", {}), place.at("kernels")),
        shared=None if shared is None else _shared(reader, shared, place.at("shared")),
        op_models=_measured(reader, device, "op_models", tuple[OpCostModel, ...], (), place),
        fits=_measured(reader, device, "fits", tuple[KernelFit, ...], (), place),
        lookups=_records(reader, Lookups, device.get("lookups", {}), place.at("lookups")),
    )


def _shared(reader: Reader, table: object, place: Place) -> Cores:
    if not isinstance(table, dict):
        raise place.wrong(table, "a table")
    sets = _records(reader, WorkingSet, _required(table, "sets", place), place.at("sets"))
    for key in sets or ("",):
        try:
            SIZE.read(key)
        except (ValueError, WeftError) as error:
            raise place.at("sets").wrong(key, 'sizes such as "64KiB" as its keys') from error
    reduces = _required(table, "reduces", place)
    return reader.record(
        Cores,
        table,
        place,
        sets=sets,
        reduces=_records(reader, Reducing, reduces, place.at("reduces")),
    )


def _recorded(reader: Reader, table: object) -> Recorded:
    """Read what traces showed: tables of tables, and a list of collectives."""
    place = reader.root.at("recorded")
    kinds = {"host": Overheads, "products": Products}
    # Files of 0.1 also have rates of copies and slowdowns, which are not used.
    table = reader.table(table, place, [*kinds, "collectives", "copies", "slowdowns"])
    exchanges = table.get("collectives", [])
    if not isinstance(exchanges, list):
        raise place.at("collectives").wrong(exchanges, "one [[recorded.collectives]] table each")
    parts: dict[str, Any] = {
        key: _records(reader, cls, table.get(key, {}), place.at(key)) for key, cls in kinds.items()
    }
    found = [
        reader.record(Exchange, each, place.at("collectives").at(i))
        for i, each in enumerate(exchanges)
    ]
    return Recorded(collectives=tuple(found), **parts)


def _measured(
    reader: Reader, table: Table, key: str, kind: Any, absent: Any, place: Place | None = None
) -> Any:
    """Read what only weft itself writes: figures which have one source."""
    if key not in table:
        return absent
    try:
        return msgspec.convert(table[key], kind)
    except msgspec.ValidationError as error:
        where = (place or reader.root).at(key)
        raise PlatformError(
            f"{where.file}: {where.key}: {error}", "Run: weft calibrate."
        ) from error


def _required(table: Table, key: str, place: Place) -> object:
    if key not in table:
        raise place.at(key).missing("a table")
    return table[key]


def _records(reader: Reader, cls: type[Record], table: object, place: Place) -> dict[str, Record]:
    """Read a table of tables, such as the flop rates by dtype."""
    if not isinstance(table, dict):
        raise place.wrong(table, _TABLES.get(cls, "a table of tables"))
    return {key: reader.record(cls, each, place.at(key)) for key, each in table.items()}


def _extended_device(reader: Reader, table: Table, place: Place) -> Table:
    """Put the keys of a device over those of the one it extends, like which it is by default."""
    name = reader.words(table["extends"], place.at("extends"))
    base = _catalogue_device(name, place.at("extends"))
    over = {key: value for key, value in table.items() if key != "extends"}
    extended: Table = merged(base, _renamed(base, over))
    return extended


def _catalogue_device(name: str, place: Place) -> Table:
    _known_device(name, place)
    path = CATALOGUE / "devices" / f"{name}.toml"
    table = read_toml(path)
    if "extends" not in table:
        return table
    return _extended_device(Reader(path.name), table, Place(path.name))


def _known_device(name: str, place: Place) -> None:
    names = device_names()
    if name not in names:
        raise place.wrong(name, "the name of a device", nearest(name, names))
