"""Platform files: what a user may write, what comes back, and what is said of mistakes."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from weft.errors import PlatformError
from weft.hardware import (
    Host,
    Level,
    Platform,
    Source,
    device_names,
    find_device,
    here_path,
    platform,
    platform_from_table,
    platform_names,
)
from weft.hardware.files import tomllib

LEVEL = '[[levels]]\nkind = "switch"\nsize = 8\nrate = "48GB/s"\n'


@pytest.fixture
def write(tmp_path: Path) -> Callable[..., Path]:
    def write(text: str, name: str = "mine.toml") -> Path:
        path = tmp_path / name
        path.write_text(text)
        return path

    return write


def read_back(machine: Platform) -> Platform:
    return platform_from_table(tomllib.loads(machine.to_toml()), "written.toml")


def set_key(table: Any, key: str, value: object) -> None:
    """Set ``device.dma.sync`` or ``levels.0.rate``; None takes the key away."""
    *path, last = key.split(".")
    for part in path:
        table = table[int(part)] if isinstance(table, list) else table.setdefault(part, {})
    if value is None:
        del table[last]
    else:
        table[last] = value


# -- there and back


@pytest.mark.parametrize(
    "spec",
    [*platform_names(), "mi300x-8x16", "switch(8)@400GiB/s,936ns/ring(4)@50GiB/s", "mesh(3)@1B/s"],
)
def test_a_platform_that_was_written_reads_the_same(spec):
    assert read_back(platform(spec)) == platform(spec)


@pytest.mark.parametrize("num_ranks", [1, 2, 8, 24])
def test_a_part_of_a_platform_reads_the_same(num_ranks):
    cut = platform("mi300x-8x16", num_ranks=num_ranks)
    assert read_back(cut) == cut


@given(
    words=st.text(st.characters(exclude_categories=["Cs"])),
    rate=st.floats(1, 1e18),
    latency=st.floats(0, 1e6),
)
def test_any_words_and_numbers_survive_being_written(words, rate, latency):
    machine = Platform(
        words,
        title=words,
        levels=(Level("ring", 3, rate, latency),),
        host=Host(rate, rate, latency),
        sources={
            key: Source("derived", words)
            for key in (
                "levels.0.rate",
                "levels.0.latency",
                "host.memory_rate",
                "host.link_rate",
                "host.link_latency",
            )
        },
    )
    assert read_back(machine) == machine


# -- what a user may write


def test_bare_numbers_are_taken_as_given(write):
    machine = platform(write(LEVEL))
    assert (machine.name, machine.levels) == ("mine", (Level("switch", 8, 48e9),))
    assert machine.sources == {"levels.0.rate": Source("given", "mine.toml")}


def test_a_path_may_be_text(write):
    assert platform(str(write(LEVEL))).num_ranks == 8


def test_a_file_may_name_a_device_of_the_catalogue(write):
    assert platform(write('device = "h100"\n' + LEVEL)).device == platform("h100-8").device


def test_a_file_may_change_a_device_of_the_catalogue(write):
    machine = platform(write(LEVEL + '[device]\nextends = "h100"\nunits = 64\n'))
    assert machine.require_device().units == 64
    assert machine.require_device().title == "NVIDIA H100 SXM"
    assert machine.sources["device.units"] == Source("given", "mine.toml")


def test_a_file_may_say_what_engines_do(write):
    text = 'extends = "h100-8"\n[device.dma]\ncollectives = ["all_gather", "all_reduce"]\n'
    device = platform(write(text)).require_device()
    assert not device.engine_refusal("all_reduce")
    assert "do no all_to_all" in device.engine_refusal("all_to_all")
    assert read_back(platform(write(text))).require_device() == device


def test_what_engines_do_is_known(write):
    with pytest.raises(PlatformError, match="'all_gathre'") as caught:
        platform(write('extends = "h100-8"\n[device.dma]\ncollectives = ["all_gathre"]\n'))
    assert "all_gather" in caught.value.hint


def test_a_file_may_extend_a_machine(write):
    text = 'extends = "mi300x-8"\n[device.dma]\nsync = "1us"\n[[levels]]\nrate = "400GB/s"\n'
    machine, base = platform(write(text)), platform("mi300x-8")
    assert machine.name == "mine"
    assert machine.levels == (Level("mesh", 8, 400e9, base.levels[0].latency, 448e9),)
    dma = machine.require_device().require_dma()
    assert dma == replace(base.require_device().require_dma(), sync=1e-6)
    assert machine.sources["device.dma.fetch"] == base.sources["device.dma.fetch"]


@pytest.mark.parametrize("device", ['device = "h100"', '[device]\nextends = "h100"'])
def test_a_file_may_put_another_device_into_what_it_extends(write, device):
    machine = platform(write(f'extends = "mi300x-8"\n{device}\n'))
    assert machine.device == platform("h100-8").device


def test_a_file_may_add_a_level_to_what_it_extends(write):
    text = 'extends = "h100-8"\n[[levels]]\n[[levels]]\nkind = "ring"\nsize = 4\nrate = "1GB/s"\n'
    assert platform(write(text)).num_ranks == 32


@pytest.mark.parametrize("base", ["mi300x-8x16", "switch(8)@400GiB/s,936ns"])
def test_a_file_may_extend_a_cluster_or_a_network(write, base):
    machine = platform(write(f'extends = "{base}"\ntitle = "x"\n'))
    assert machine.levels == platform(base).levels


def test_a_file_may_extend_another_file(write):
    write(LEVEL, "base.toml")
    assert platform(write('extends = "base.toml"\nname = "own"\n')).name == "own"


def test_a_number_that_is_replaced_loses_its_source(write):
    text = (
        'extends = "h100-8"\n[nic]\nrate = { value = "100GB/s", basis = "rated", source = "us" }\n'
    )
    assert platform(write(text)).sources["nic.rate"] == Source("rated", "us")


# -- this machine


def test_here_is_what_was_calibrated(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    here_path().parent.mkdir()
    here_path().write_text(LEVEL)
    assert platform("here").name == "here"


def test_here_is_kept_in_the_home_directory_by_default(tmp_path, monkeypatch):
    monkeypatch.delenv("XDG_CONFIG_HOME", raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))
    assert here_path() == tmp_path / ".config" / "weft" / "here.toml"


def test_here_asks_for_a_calibration(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    with pytest.raises(PlatformError, match="was not calibrated") as caught:
        platform("here")
    assert "weft calibrate" in caught.value.hint
    assert "cpu" in caught.value.hint


def test_here_cannot_extend_itself(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    here_path().parent.mkdir()
    here_path().write_text('extends = "here"\n')
    with pytest.raises(PlatformError, match=r"here\.toml extends itself"):
        platform("here")


# -- mistakes

RATE = 'expected a positive rate such as "48GB/s"'
COUNT = "expected a whole number from 1 up"


@pytest.mark.parametrize(
    ("key", "value", "message"),
    [
        ("levels.0.rate", "-48GB/s", f'levels.0.rate = "-48GB/s": {RATE}'),
        ("levels.0.rate", -1.0, f"levels.0.rate = -1.0: {RATE}"),
        ("levels.0.rate", 0, f"levels.0.rate = 0: {RATE}"),
        ("levels.0.rate", float("nan"), f"levels.0.rate = nan: {RATE}"),
        ("levels.0.rate", float("inf"), f"levels.0.rate = inf: {RATE}"),
        ("levels.0.rate", 10**400, f"levels.0.rate = 1{'0' * 56}...: {RATE}"),
        ("levels.0.rate", True, f"levels.0.rate = true: {RATE}"),
        ("levels.0.rate", "fast", f'levels.0.rate = "fast": {RATE}'),
        ("levels.0.rate", [1], f"levels.0.rate = [1]: {RATE}"),
        ("levels.0.rate", "9" * 80, f'levels.0.rate = "{"9" * 56}...: {RATE}'),
        ("levels.0.rate", None, f"levels.0.rate is missing: {RATE}"),
        ("levels.0.rate", {"basis": "rated"}, f"levels.0.rate.value is missing: {RATE}"),
        (
            "levels.0.rate.basis",
            "sure",
            'basis = "sure": expected one of rated, achieved, fitted, inherited, derived, given',
        ),
        ("levels.0.rate.source", 3, "levels.0.rate.source = 3: expected a string"),
        ("levels.0.latency", "-1us", 'levels.0.latency = "-1us": expected a time of zero or more'),
        ("levels.0.size", 0, f"levels.0.size = 0: {COUNT}"),
        ("levels.0.size", "8", f'levels.0.size = "8": {COUNT}'),
        ("levels.0.size", None, f"levels.0.size is missing: {COUNT}"),
        ("levels.0.kind", "torus", "levels.0: kind 'torus': expected switch, ring or mesh"),
        ("levels.0.kind", None, "levels.0.kind is missing: expected switch, ring or mesh"),
        ("levels", [], "levels = []: expected one [[levels]] table per level"),
        ("levels", [3], "levels.0 = 3: expected a table"),
        ("levels", None, "levels is missing: expected one [[levels]] table per level"),
        ("node_levels", 2, "node_levels = 2: expected a whole number from 1 to the number of"),
        ("node_levels", 1.5, "node_levels = 1.5: expected a whole number from 1 to the number of"),
        ("staged", "yes", 'staged = "yes": expected true or false'),
        ("title", 3, "title = 3: expected a string"),
        ("host", 3, "host = 3: expected a table"),
        ("host.link_rate", None, f"host.link_rate is missing: {RATE}"),
        ("device", 3, "device = 3: expected the name of a device or a [device] table"),
        ("device", "h1000", 'device = "h1000": expected the name of a device'),
        ("device", {"extends": "h1000"}, 'device.extends = "h1000": expected the name of a device'),
        ("device", {"extends": 3}, "device.extends = 3: expected a string"),
        ("device.units", -3, f"device.units = -3: {COUNT}"),
        ("device.units", 3.5, f"device.units = 3.5: {COUNT}"),
        ("device.units", None, f"device.units is missing: {COUNT}"),
        ("device.vendor", None, "device.vendor is missing: expected a string"),
        ("device.memory_bytes", "-1GiB", 'device.memory_bytes = "-1GiB": expected a positive size'),
        ("device.power", None, "device.power is missing: expected a table"),
        ("device.power.idle", -1, "device.power.idle = -1: expected watts"),
        ("device.power.link_byte", "x", 'device.power.link_byte = "x": expected joules per byte'),
        ("device.flops", None, "device.flops is missing: expected a table"),
        ("device.flops", 3, "device.flops = 3: expected a table of dtypes"),
        ("device.flops.bf16", 1e15, "device.flops.bf16 = 1000000000000000.0: expected a table"),
        ("device.flops.bf16.rated", 0, "device.flops.bf16.rated = 0: expected a positive number"),
        ("device.dma.sync", "soon", 'device.dma.sync = "soon": expected a time of zero or more'),
        ("device.dma.features", "b2b", 'dma.features = "b2b": expected a list of names'),
        ("device.dma.collectives", [3], "dma.collectives.0 = 3: expected a string"),
    ],
)
def test_a_wrong_value_is_named_with_its_key_and_what_was_expected(key, value, message):
    table = platform("h100-8").to_table()
    set_key(table, key, value)
    with pytest.raises(PlatformError) as caught:
        platform_from_table(table, "mine.toml")
    assert caught.value.message.startswith("mine.toml: ")
    assert message in caught.value.message
    assert "\n" not in caught.value.message


@pytest.mark.parametrize(
    ("key", "close"),
    [
        ("devise", "'device'"),
        ("sources", "staged"),
        ("levels.0.lattency", "'latency'"),
        ("device.memory_byte", "'memory_bytes'"),
        ("device.dma.syncc", "'sync'"),
        ("device.flops.bf16.acheived", "'achieved'"),
        ("nic.rates", "'rate'"),
        ("levels.0.rate.sauce", "'source'"),
    ],
)
def test_an_unknown_key_suggests_the_nearest(key, close):
    table = platform("h100-8").to_table()
    set_key(table, key, 1)
    with pytest.raises(PlatformError, match=f"mine.toml: {key} is not a known key") as caught:
        platform_from_table(table, "mine.toml")
    assert close in caught.value.hint


def test_a_wrong_device_suggests_the_nearest(write):
    with pytest.raises(PlatformError) as caught:
        platform(write('device = "h1000"\n' + LEVEL))
    assert "'h100'" in caught.value.hint


def test_copies_through_the_host_need_a_host(write):
    with pytest.raises(PlatformError, match="host is missing: expected a table, because staged"):
        platform(write("staged = true\n" + LEVEL))


def test_a_file_that_is_not_there_suggests_the_nearest(write):
    there = write(LEVEL)
    with pytest.raises(PlatformError, match=r"there is no file .*mime\.toml") as caught:
        platform(there.with_name("mime.toml"))
    assert "mine.toml" in caught.value.hint


def test_a_folder_is_not_a_file(tmp_path):
    (tmp_path / "folder.toml").mkdir()
    with pytest.raises(PlatformError, match=r"folder\.toml cannot be read: Is a directory"):
        platform(tmp_path / "folder.toml")


@pytest.mark.parametrize("text", ["name = \n", "{}", "a = 1\na = 2\n"])
def test_what_is_not_toml_is_said_with_its_line(write, text):
    with pytest.raises(PlatformError, match=r"mine\.toml is not TOML: .*line") as caught:
        platform(write(text))
    assert "\n" not in caught.value.message


def test_bytes_that_are_not_text_are_not_toml(tmp_path):
    (tmp_path / "mine.toml").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(PlatformError, match="is not TOML"):
        platform(tmp_path / "mine.toml")


def test_files_that_extend_each_other_are_refused(write):
    write('extends = "mine.toml"\n', "other.toml")
    with pytest.raises(PlatformError, match=r"mine\.toml extends itself"):
        platform(write('extends = "other.toml"\n'))


def test_an_extended_name_must_exist(write):
    with pytest.raises(PlatformError, match="unknown platform 'mi300-8'"):
        platform(write('extends = "mi300-8"\n'))


def test_extends_is_a_name(write):
    with pytest.raises(PlatformError, match=r"mine\.toml: extends = 3: expected a string"):
        platform(write("extends = 3\n"))


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("torch", {"forward": "fast"}),
        ("libraries", [{"name": "gloo"}]),
        ("noise", {"foreign": 0.0}),
        ("codecs", 3),
    ],
)
def test_what_calibrate_wrote_and_somebody_changed_is_named(key, value):
    table = {**platform("cpu").to_table(), key: value}
    with pytest.raises(PlatformError, match=key):
        platform_from_table(table, "here.toml")


# -- devices like others


def test_a_device_of_a_file_says_which_one_it_is_like(write):
    file = write(f'{LEVEL}[device]\nextends = "h100"\nname = "h999"\nlike = "b200"\n')
    machine = platform(file)
    assert machine.require_device().like == "b200"
    assert read_back(machine).require_device().like == "b200"


@pytest.mark.parametrize(("base", "like"), [("h100-8", "h100"), ("h20-8", "h100")])
def test_a_renamed_device_of_a_machine_that_is_extended_is_like_the_one_it_had(write, base, like):
    named = '[device]\nname = "h999"\n'
    assert platform(write(f'extends = "{base}"\n{named}')).require_device().like == like
    other = platform(write(f'extends = "{base}"\n{named}like = "b200"\n'))
    assert other.require_device().like == "b200"
    assert platform(write('extends = "h100-8"\n')).require_device().like == ""


def test_a_device_that_extends_another_is_like_it(write):
    file = write(f'{LEVEL}[device]\nextends = "h100"\nname = "h999"\n')
    assert platform(file).require_device().like == "h100"
    file = write(f'{LEVEL}[device]\nextends = "h20"\nname = "h21"\n')
    assert platform(file).require_device().like == "h100"  # what H20 is like itself
    file = write(f'{LEVEL}[device]\nextends = "h100"\nhost_launch = "9us"\n')
    assert platform(file).require_device().like == ""


def test_a_device_like_an_unknown_one_is_refused(write):
    file = write(f'{LEVEL}[device]\nextends = "h100"\nname = "h999"\nlike = "h10"\n')
    with pytest.raises(PlatformError, match=r'device\.like = "h10"') as caught:
        platform(file)
    assert "h100" in caught.value.hint


def test_a_device_in_the_place_of_a_machine_names_the_machines_that_have_it():
    with pytest.raises(PlatformError, match="'mi300x' is a device") as caught:
        platform("mi300x")
    assert "mi300x-8" in caught.value.hint


@pytest.mark.parametrize("name", device_names())
def test_every_device_of_the_catalogue_is_found_by_its_name(name):
    assert find_device(name).name == name


@pytest.mark.parametrize("named", ["", 'name = "slower"\n'])
def test_a_new_device_with_a_rating_alone_achieves_the_same_share_of_it(write, named):
    given = 'bf16.rated = { value = 5e14, basis = "given", source = "data sheet" }\n'
    file = write(f'extends = "h100-8"\n[device]\n{named}[device.flops]\n{given}')
    found = platform(file).require_device()
    known = platform("h100-8").require_device()
    bf16 = known.flops["bf16"]
    share = bf16.achieved / bf16.rated if named else bf16.achieved / 5e14
    assert found.flops["bf16"].achieved == pytest.approx(share * 5e14)
    assert found.flops["fp16"] == known.flops["fp16"]
    stated = given + 'bf16.achieved = { value = 4e14, basis = "given", source = "measured" }\n'
    file = write(f'extends = "h100-8"\n[device]\n{named}[device.flops]\n{stated}')
    assert platform(file).require_device().flops["bf16"].achieved == 4e14


def test_a_new_device_with_a_rated_memory_alone_achieves_the_same_share_of_it(write):
    rated = 'memory_rated = { value = "1675GB/s", basis = "given", source = "data sheet" }\n'
    found = platform(write(f'extends = "h100-8"\n[device]\nname = "half"\n{rated}'))
    known = platform("h100-8").require_device()
    share = known.memory_rate / known.memory_rated
    assert found.require_device().memory_rate == pytest.approx(share * 1675e9)
    with pytest.raises(PlatformError, match="memory_rated"):
        platform(write('extends = "h100-8"\n[device]\nname = "x"\nmemory_rated = "many"\n'))
