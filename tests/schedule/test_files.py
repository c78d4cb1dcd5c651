"""Schedules as JSON: what is written can be read, what is wrong is said in one line."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from benchmarks.uneven_all_to_all import uneven_all_to_all
from tests.runtime.cases import CASES
from tests.schedule.samples import calls, commands, sample, schedules
from weft.collectives import KINDS, algorithms, collective
from weft.errors import FormatError, RaceError, TooLargeError, WeftError
from weft.schedule import (
    SELF,
    Buffer,
    Copy,
    Launch,
    Program,
    Queue,
    Repeat,
    Schedule,
    Slice,
    expand,
    from_json,
    load,
    save,
    to_json,
)

pytestmark = pytest.mark.thorough

SAMPLE = Path(__file__).parents[1] / "data" / "schedule-v1.json"
BUILDERS = [(kind, algorithm) for kind in KINDS for algorithm in algorithms(kind)]


@pytest.mark.parametrize(("kind", "algorithm"), BUILDERS)
def test_every_collective_comes_back_as_it_was(kind, algorithm):
    node_size = 2 if algorithm == "hierarchical" else None
    schedule = collective(kind, algorithm, num_ranks=4, nbytes=44, node_size=node_size)
    assert from_json(to_json(schedule)) == schedule


@pytest.mark.parametrize("name", CASES)
def test_every_command_comes_back_as_it_was(name):
    schedule = CASES[name](3)
    assert from_json(to_json(schedule)) == schedule


@settings(max_examples=25, suppress_health_check=list(HealthCheck))
@given(schedules(commands | calls))
def test_any_schedule_comes_back_as_it_was(schedule):
    assert from_json(to_json(schedule)) == schedule


def test_numbers_of_numpy_are_numbers():
    schedule = uneven_all_to_all([list(row) for row in np.arange(9).reshape(3, 3)])
    assert from_json(to_json(schedule)) == schedule


def test_a_file_of_the_first_version_still_loads():
    assert load(SAMPLE) == sample()


def test_what_is_saved_can_be_loaded(tmp_path):
    schedule = collective("all_reduce", "ring", num_ranks=4, nbytes=44)
    save(schedule, tmp_path / "x.json")
    assert load(tmp_path / "x.json") == schedule


def test_many_ranks_take_a_small_file():
    schedule = collective(
        "all_reduce", "hierarchical", num_ranks=131_072, nbytes=1 << 30, node_size=8
    )
    assert len(to_json(schedule)) < 100_000


SMALL = Schedule(
    "small",
    2,
    (
        Program(
            range(2),
            (
                Queue("host", ()),
                Queue("copy0", (Repeat(2, (Copy(*2 * (Slice(SELF, "x", 0, 4),)),)),)),
            ),
        ),
    ),
    (Buffer("x", 4),),
)
COMMAND = "programs[0].queues[1].commands[0]"


def refusal(text):
    with pytest.raises(WeftError) as caught:
        from_json(text)
    error = caught.value
    assert isinstance(error, (FormatError, TooLargeError))
    assert "\n" not in error.message
    return f"{error.message} {error.hint}"


def test_a_truncated_file_says_where_it_ends():
    text = to_json(SMALL)
    assert refusal(text[:200]).startswith("the file is truncated: it ends after 200 bytes, inside ")
    assert "ends after 0 bytes" in refusal("")


def test_every_truncation_is_noticed():
    text = to_json(SMALL)
    for end in range(len(text) - 2):
        assert "truncated" in refusal(text[:end])


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("not json", "invalid JSON: Expecting value at line 1, column 1."),
        ('{"weft" "schedule"}', "Expecting ':' delimiter at line 1, column 9."),
        ("[]", "not a weft schedule."),
        ("{}", "not a weft schedule."),
        ('{"weft": "0.1.0", "verb": "collective"}', "not a weft schedule."),
        ('{"weft": "schedule"}', "version is missing: expected a whole number."),
        ('{"weft": "schedule", "version": "1"}', "version is '1': expected a whole number"),
        ('{"weft": "schedule", "version": 0}', "version is 0: expected a whole number from 1 on."),
        (
            '{"weft": "schedule", "version": 7}',
            "version 7 is not supported (this weft reads up to version 1)",
        ),
        ('{"weft": "schedule", "version": 1, "x": %s}' % ("9" * 5000), "invalid JSON: "),
    ],
)
def test_what_is_no_schedule_is_refused(text, says):
    assert says in refusal(text)


def changed(key, value):
    """The small schedule as JSON with another value at a place, or (None) without it."""
    whole = json.loads(to_json(SMALL))
    *path, last = key
    inner = whole
    for step in path:
        inner = inner[step]
    if value is None:
        del inner[last]
    else:
        inner[last] = value
    return json.dumps(whole)


PROGRAM = ("programs", 0)
REPEAT = (*PROGRAM, "queues", 1, "commands", 0)
COPY = (*REPEAT, "body", 0)
SRC = (*COPY, "src")
GROUP = (*SRC, "rank", "index", "group")
TERM = {"terms": [{"index": {"group": {"size": 3}}, "table": [1, 2]}]}
TABLE = {"index": {"group": {"size": 3}}, "table": [1, 2]}
KERNEL = {"kind": "Kernel", "op": "x"}


@pytest.mark.parametrize(
    ("key", "value", "says"),
    [
        (("name",), None, "name is missing: expected a text"),
        (("name",), 3, "name is 3: expected a text of printable characters."),
        (("name",), "\ud800", r"name is '\ud800': expected a text of printable"),
        (("ranks",), 3, "ranks is 3: expected no such key in a Schedule. Did you mean 'num_ranks'"),
        (("num_ranks",), True, "num_ranks is True: expected a whole number."),
        (("num_ranks",), 0, "num_ranks is 0: expected a whole number from 1 on."),
        (("num_flags",), -1, "num_flags is -1: expected a whole number from 0 on."),
        (("num_ranks",), 10**12, "num_ranks is 1,000,000,000,000, expected at most 1,048,576."),
        (("num_flags",), 10**12, "the file has 2,000,000,000,000 flags in total"),
        (("programs",), {}, "programs is {}: expected a list."),
        (PROGRAM, [], "programs[0] is []: expected a Program."),
        ((*PROGRAM, "ranks"), "all", "ranks is 'all': expected a range: start, stop and step or a"),
        ((*PROGRAM, "ranks", "step"), 0, "programs[0].ranks.step is 0: expected a step."),
        ((*PROGRAM, "ranks", "step"), None, "expected a range: start, stop and step."),
        ((*PROGRAM, "ranks", "stop"), 10**12, "programs[0].ranks is range(0, 1000000000000): "),
        ((*PROGRAM, "ranks"), [0, "1"], "programs[0].ranks[1] is '1': expected a whole number."),
        ((*PROGRAM, "queues", 0, "units"), [1], "units is [1]: expected a list of 2."),
        ((*PROGRAM, "queues", 0, "units"), 1, "units is 1: expected a list of 2 or null."),
        ((*PROGRAM, "queues", 0, "host"), 1.5, "host is 1.5: expected a whole number or a Peer."),
        (("buffers", 0, "role"), "input", "role is 'input': expected one of in, out, inout, scrat"),
        (("buffers", 0, "nbytes"), -1, "buffers[0].nbytes is -1: expected a whole number from 0"),
        (("buffers", 0, "nbytes"), [1], "buffers[0].nbytes is (1,): expected a size for each of 2"),
        (("ratios",), [["x", float("nan")]], "ratios[0][1] is nan: expected a number."),
        (REPEAT, 3, f"{COMMAND} is 3: expected a command."),
        ((*REPEAT, "kind"), None, f"{COMMAND}.kind is missing: expected one of Kernel, Launch,"),
        ((*REPEAT, "kind"), "Repaet", f"{COMMAND}.kind is 'Repaet': expected a command that may"),
        ((*REPEAT, "kind"), "Repaet", "Did you mean 'Repeat'?"),
        ((*REPEAT, "kind"), [], f"{COMMAND}.kind is []: expected a command that may stand here."),
        ((*REPEAT, "count"), -1, f"{COMMAND}.count is -1: expected a whole number from 0 on."),
        ((*REPEAT, "count"), 1 << 60, f"{COMMAND}.count is 1152921504606846976: expected a whole"),
        ((*COPY, "src"), None, f"{COMMAND}.body[0].src is missing: expected a Slice."),
        ((*COPY, "dest"), 1, f"{COMMAND}.body[0].dest is 1: expected no such key in a Copy. Did"),
        ((*SRC, "nbytes"), "4", f"{COMMAND}.body[0].src.nbytes is '4': expected a whole number or"),
        ((*SRC, "nbytes"), TERM, "src.nbytes.terms[0].table is (1, 2): expected 3 or 3 x 3 number"),
        ((*SRC, "rank"), TABLE, "src.rank.table is (1, 2): expected 3 positions."),
        ((*GROUP, "stride"), 0, "src.rank.index.group.stride is 0: expected a whole number from 1"),
        ((*GROUP, "ranks"), [-1], "src.rank.index.group.ranks is -1: expected a whole number from"),
        ((*GROUP, "ranks"), [10**9], "src.rank.index.group: group of more than 1,048,576 rank"),
        (COPY, {**KERNEL, "external": 1}, "body[0].external is 1: expected true or false."),
        (COPY, {**KERNEL, "cost": {"flops": "x"}}, "cost.flops is 'x': expected a number."),
        (COPY, {**KERNEL, "cost": {"flops": 10**400}}, "0000: expected a number."),
        (COPY, {"kind": "Launch", "lanes": [KERNEL]}, "lanes[0].kind is 'Kernel': expected a comm"),
    ],
)  # fmt: skip
def test_a_wrong_value_is_named_with_its_place(key, value, says):
    assert says in refusal(changed(key, value))


def test_more_queues_than_memory_are_refused():
    queues = [{"name": f"stream{k}", "commands": []} for k in range(20)]
    program = {"ranks": {"start": 0, "stop": 1 << 20, "step": 1}, "queues": queues}
    text = json.dumps(
        {"weft": "schedule", "version": 1, "name": "x", "num_ranks": 1 << 20, "programs": [program]}
    )
    assert "has 20,971,520 queues in total, expected at most 16,777,216." in refusal(text)


def with_commands(*items):
    queue = {"name": "stream0", "commands": list(items)}
    program = {"ranks": [0], "queues": [queue]}
    return {"weft": "schedule", "version": 1, "name": "x", "num_ranks": 1, "programs": [program]}


def loop(count, *body):
    return {"kind": "Repeat", "count": count, "body": list(body)}


def written(tmp_path, whole):
    path = tmp_path / "x.json"
    path.write_text(whole if isinstance(whole, str) else json.dumps(whole))
    return path


def test_loops_in_loops_that_never_end_are_refused(tmp_path):
    command = {"kind": "Kernel", "op": "x"}
    for _ in range(50):
        command = loop(10**12, command)
    with pytest.raises(TooLargeError, match=r"schedule x: 1 ranks expand to 1,0[0,]* comm"):
        load(written(tmp_path, with_commands(command)))


def test_a_loop_around_nothing_costs_nothing(tmp_path):
    empty = loop(10**12, loop(10**12), {"kind": "Launch", "lanes": [[loop(10**12)]]})
    launch = {"kind": "Launch", "lanes": [loop(10**12), [], [loop(10**12, loop(0, empty))]]}
    schedule = load(written(tmp_path, with_commands(loop(10**12, loop(0, empty)), launch)))
    assert expand(schedule).num_rows == 1


def test_slices_beyond_measure_are_refused(tmp_path):
    slices = [{"rank": 0, "buffer": "x", "offset": 0, "nbytes": 0}] * 100
    kernel = {"kind": "Kernel", "op": "x", "reads": slices}
    whole = with_commands(loop(1_000_000, kernel)) | {"buffers": [{"name": "x", "nbytes": 0}]}
    with pytest.raises(TooLargeError, match="100,000,000 slices, expected at most 30,000,000"):
        load(written(tmp_path, whole))


@pytest.mark.parametrize("depth", [65, 300, 100_000])
def test_nesting_without_end_is_refused(depth):
    loops = '{"kind": "Repeat", "count": 1, "body": [' * depth + "]}" * depth
    text = json.dumps(with_commands("here")).replace('"here"', loops)
    assert "nested more than 64 deep" in refusal(text)
    assert "more than 64" in refusal("[" * depth * 1000)


def test_as_much_nesting_as_is_allowed_can_be_read_and_checked(tmp_path):
    command = {"kind": "Kernel", "op": "x"}
    for _ in range(63):
        command = loop(1, command)
    assert load(written(tmp_path, with_commands(command))).num_stored == 64


def test_a_file_that_is_no_text_or_not_there_is_refused(tmp_path):
    path = tmp_path / "x.json"
    with pytest.raises(FormatError, match=r"x\.json"):
        load(path)
    with pytest.raises(FormatError, match="Is a directory"):
        load(tmp_path)
    path.write_bytes(b'{"weft": "\xff')
    with pytest.raises(FormatError, match="byte 10 is not UTF-8"):
        load(path)


def test_a_schedule_is_checked_when_it_is_loaded(tmp_path):
    path = tmp_path / "x.json"
    lanes = ((SMALL.programs[0].queues[1].commands[0],),) * 2
    queue = Queue("stream0", (Launch(lanes),))
    save(Schedule("racy", 2, (Program((0,), (queue,)),), SMALL.buffers), path)
    with pytest.raises(RaceError, match=r"x\.json: stream0@0 lane 0 #2 Copy and stream0@0 lane 1"):
        load(path)
    assert load(path, check=False).name == "racy"


leaves: st.SearchStrategy[object] = st.one_of(
    st.integers(-3, 9),
    st.integers(),
    st.sampled_from(["", "in", "x", None, 1.5, [], {}, [0], True]),
)


def places(inner, path=()):
    """Every place in a JSON value."""
    if path:
        yield path
    steps = inner.items() if isinstance(inner, dict) else enumerate(inner)
    for key, value in steps if isinstance(inner, (dict, list)) else ():
        yield from (
            places(value, (*path, key)) if isinstance(value, (dict, list)) else [(*path, key)]
        )


TEXTS = [
    to_json(schedule)
    for schedule in (
        sample(),
        collective("all_reduce", "hierarchical", num_ranks=4, nbytes=44, node_size=2),
        collective("all_gather", "dma-bcst+prelaunch", num_ranks=4, nbytes=44),
        collective("all_reduce", "halving-doubling", num_ranks=4, nbytes=45),
        uneven_all_to_all([[1, 2, 3], [4, 5, 6], [7, 8, 9]], queue="nic0"),
    )
]
PLACES = [list(places(json.loads(text))) for text in TEXTS]


@settings(max_examples=200, suppress_health_check=list(HealthCheck))
@given(st.data())
def test_whatever_a_file_holds_ends_in_a_schedule_or_in_our_own_error(tmp_path_factory, data):
    number = data.draw(st.integers(0, len(TEXTS) - 1))
    whole = json.loads(TEXTS[number])
    *path, last = data.draw(st.sampled_from(PLACES[number]))
    inner = whole
    for step in path:
        inner = inner[step]
    inner[last] = data.draw(leaves)
    path = written(tmp_path_factory.getbasetemp(), whole)
    try:
        schedule = load(path)
    except WeftError as error:
        assert "\n" not in error.message  # noqa: PT017 - most changes are errors, some are not
    else:
        assert from_json(to_json(schedule)) == schedule
