"""The page of what-ifs, of answers made by hand."""

from typing import Any

import pytest

from tests.report.test_pages import HOSTILE, Read
from tests.spans import handshake
from weft.report.whatif_page import page
from weft.whatif import Answer, Outcome, Replay


class Run:
    """What an answer keeps of a simulated step."""

    def timeline(self):
        return handshake()


def answer(*outcomes, file="rank0.json"):
    replays = (Replay("step 1", 10e-3, 9e-3, held_out=True, by_device=False),)
    runs: dict[str, Any] = {"": Run(), **{each.name: Run() for each in outcomes}}
    return Answer(file, 0, replays, 10e-3, 9e-3, outcomes, ("a note",), runs)


def outcome(name, step, why="because"):
    return Outcome(name, step, step - 1e-3, step + 1e-3, 1 - step / 9e-3, why)


def test_the_error_of_the_replay_stands_before_every_change():
    text = page([answer(outcome("dma", 6e-3))])
    assert text.index("replayed as 9 ms (-10.0 %)") < text.index("dma")
    assert "dma saves most, 33.3 %: because." in text


def test_changes_come_the_shortest_step_first_with_their_ranges():
    text = page([answer(outcome("slow", 12e-3), outcome("quick", 6e-3))])
    assert text.index('title="quick"') < text.index('title="slow"')
    assert "5 ms to 7 ms" in text
    assert text.count('<b style="left:') == 2


def test_the_replay_and_the_best_change_are_shown_in_time():
    text = page([answer(outcome("quick", 6e-3), outcome("slow", 12e-3))])
    assert text.count("data-timeline=") == 2
    assert "Timeline with quick" in text


def test_where_nothing_helps_the_page_says_so():
    text = page([answer(outcome("slow", 12e-3))])
    assert "No change that was tried makes it shorter." in text
    assert text.count("data-timeline=") == 1


@pytest.mark.parametrize(
    "answers",
    [
        [],
        [answer()],
        [answer(outcome(HOSTILE, 6e-3, HOSTILE), file=HOSTILE)],
        [answer(outcome("dma", 6e-3)), answer(outcome("dma", 6e-3), file="a, b")],
    ],
)
def test_the_page_is_whole(answers):
    read = Read(page(answers).encode().decode())
    ids = [attrs["id"] for _, attrs in read.found if "id" in attrs]
    assert (read.wrong, read.open) == ([], [])
    assert len(ids) == len(set(ids))
    assert not read.all("img")
