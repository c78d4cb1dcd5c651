from dataclasses import replace

import pytest

from benchmarks import collectives, ddp, environments, figures, launch
from benchmarks.collective_case import KINDS
from benchmarks.collectives import sized
from benchmarks.environments import MPIS
from benchmarks.rows import Options
from benchmarks.table_of_collectives import print_collective_rows, print_figure_rows
from tests.benchmarks.fakes import fake_team
from weft.errors import RunError, UnknownNameError, UsageError
from weft.local_runs import contest, rank_team

SHORT = Options(ranks=(2,), sizes=(1 << 10,), rounds=2)


@pytest.fixture
def fake_teams(tmp_path, monkeypatch):
    """Replace all contestants by fakes; the peer of ``lies`` has a wrong result."""
    lies = {"manner": ""}
    monkeypatch.setattr(
        launch,
        "_team",
        lambda name, n: fake_team(
            tmp_path / "log", name, n, lies["manner"] if name == "mpich" else ""
        ),
    )
    return lies


@pytest.mark.multiprocess
def test_every_path_gets_a_row_with_every_peer(fake_teams):
    options = replace(SHORT, against=("gloo", "mpich"), collectives=("all_gather",))
    rows = list(collectives.run(options))
    assert len(rows) == collectives.count_rows(options)
    assert [row.case["path"] for row in rows] == ["dist", "direct", "ordinary"]
    for row in rows:
        assert set(row.peers) == {"gloo", "mpich"}
        assert row.case["nbytes"] == 1 << 10
        assert row.more["count"] == 256
        assert row.more["algbw"] == pytest.approx(1024 / row.seconds)
        assert row.more["busbw"] == pytest.approx(512 / row.seconds)
        assert row.more["versions"]["mpich"] == "fake mpich 1.0"


@pytest.mark.multiprocess
def test_a_peer_that_lies_is_shown(fake_teams, capsys):
    fake_teams["manner"] = "lie"
    options = replace(SHORT, against=("gloo", "mpich"), collectives=("broadcast",))
    rows = list(collectives.run(options))
    assert rows[0].more["wrong"] == 0
    assert rows[0].more["wrong_peers"] == {"gloo": 0, "mpich": 20}
    print_collective_rows(rows)
    shown = capsys.readouterr().out
    assert "#wrong mpich" in shown
    assert "#wrong gloo" not in shown


@pytest.mark.multiprocess
def test_figures_say_what_was_reached(fake_teams, capsys):
    options = replace(SHORT, collectives=("broadcast",))
    rows = list(figures.run(options))
    assert len(rows) == figures.count_rows(options) == 2
    assert {row.case["figure"] for row in rows} == {
        "small, by torch.distributed",
        "small, prepared",
    }
    assert all(row.more["met"] is False for row in rows)  # a fake takes longer than 10 us
    print_figure_rows(rows)
    assert "at most 10 us; 15x gloo" in capsys.readouterr().out


@pytest.mark.parametrize("module", [collectives, figures])
def test_an_unknown_peer_gets_the_nearest_name(module):
    with pytest.raises(UnknownNameError, match="unknown peer 'glo'") as caught:
        list(module.run(Options(against=("glo",))))
    assert caught.value.hint == "Did you mean 'gloo'?"


def test_an_unknown_collective_gets_the_nearest_name():
    with pytest.raises(UnknownNameError, match="unknown collective 'all_gathr'") as caught:
        collectives.count_rows(Options(collectives=("all_gathr",)))
    assert "all_gather" in caught.value.hint


def test_ddp_has_one_peer():
    with pytest.raises(UsageError, match="Gloo alone"):
        list(ddp.run(Options(against=("mpich",))))


@pytest.mark.parametrize(
    ("kind", "size", "per_rank", "nbytes"),
    [
        ("all_gather", 1024, False, 1024),
        ("all_gather", 1024, True, 4096),
        ("all_to_all", 1024, True, 1024),
        ("all_reduce", 1, False, 16),
        ("all_reduce", 17, False, 32),
    ],
)
def test_sizes_are_rounded_up_to_what_ranks_can_share(kind, size, per_rank, nbytes):
    assert sized(kind, size, 4, per_rank=per_rank).nbytes == nbytes


def test_figures_are_narrowed_down():
    everything = figures.count_rows(Options())
    assert figures.count_rows(Options(ranks=(2,))) + figures.count_rows(Options(ranks=(4,))) == (
        everything
    )
    assert sum(figures.count_rows(Options(collectives=(kind,))) for kind in KINDS) == everything
    assert figures.count_rows(Options(sizes=(3,))) == 0


def test_without_torch_a_path_says_what_to_install(monkeypatch):
    monkeypatch.setattr(rank_team, "find_spec", lambda _: None)
    with (
        pytest.raises(RunError, match="gloo needs torch") as caught,
        launch.started(["gloo"], 2, pin=False),
    ):
        pass
    assert "pip install" in caught.value.hint


@pytest.mark.multiprocess
@pytest.mark.torch
@pytest.mark.slow
@pytest.mark.parametrize("ranks", [2, 4])
def test_weft_and_gloo_are_right(ranks, monkeypatch):
    monkeypatch.setattr(contest, "LONG_ENOUGH", 0)
    options = Options(against=("gloo",), ranks=(ranks,), sizes=(4 << 10,), rounds=1)
    for row in collectives.run(options):
        assert row.more["wrong"] == 0
        assert row.more["wrong_peers"] == {"gloo": 0}


@pytest.mark.multiprocess
@pytest.mark.parametrize("mpi", MPIS)
def test_a_real_mpi_is_right(mpi):
    if not (environments.root() / mpi / "complete").exists():
        pytest.skip(f"no environment of {mpi}: make peers")
    with launch.started((mpi,), 2, pin=False) as started:
        for kind in KINDS:
            exchange = sized(kind, 4 << 10, 2, per_rank=True)
            options = Options(against=(mpi,), rounds=1)
            outcome = collectives.measured(exchange, started, (), options)
            assert outcome.wrong(mpi) == 0


@pytest.mark.multiprocess
@pytest.mark.torch
@pytest.mark.slow
def test_training_has_the_same_losses(monkeypatch):
    monkeypatch.setattr(contest, "LONG_ENOUGH", 0)
    monkeypatch.setattr(ddp, "_BATCHES", (4, 8))
    (row,) = ddp.run(Options(ranks=(2,), sizes=(32 << 10,), rounds=1))
    assert row.more["loss_difference"] <= 1e-6
    assert row.case["batch"] in (4, 8)
    assert set(row.peers) == {"gloo"}
