import multiprocessing
from collections import deque
from importlib.util import find_spec

import pytest

from tests.sweep.asked import ask
from weft.errors import RunError, UsageError
from weft.sweep import SweepCell, local, run_local, run_on_dask

needs_dask = pytest.mark.skipif(not find_spec("distributed"), reason="distributed is not installed")


def cells(*words):
    return [SweepCell(tuple(each.split()), ()) for each in words]


def answers(asked, numbers=None, *, workers=2, timeout=60.0):
    numbers = range(len(asked)) if numbers is None else numbers
    found = run_local(asked, list(numbers), ask, workers=workers, timeout=timeout)
    return {answer.number: answer for answer in found}


@pytest.mark.multiprocess
def test_cells_are_answered_and_failures_stay_where_they_are():
    found = answers(cells("give 1", "fail no", "give 3", "give 4", "give 5"), [0, 1, 2, 4])
    assert {number: answer.rows for number, answer in found.items()} == {
        0: [{"value": 1}],
        1: [],
        2: [{"value": 3}],
        4: [{"value": 5}],
    }
    assert found[1].error == "no"


@pytest.mark.multiprocess
def test_a_process_that_dies_costs_its_cell_alone(tmp_path):
    asked = cells("give 1", "die", f"die-once {tmp_path / 'died'}", "give 4")
    found = answers(asked)
    assert [found[n].rows for n in (0, 2, 3)] == [[{"value": 1}], [{"value": -1}], [{"value": 4}]]
    assert found[1].error == "its process died (exit code 3)"
    assert found[1].again


def test_a_process_that_died_between_cells_is_given_one_and_heard_of():
    mine, theirs = multiprocessing.Pipe()
    theirs.close()
    worker, tries = local._Worker(None, mine), {0: 0}
    local._assign(worker, deque([0]), cells("give 1"), tries)
    assert local._wait_for_workers([worker], 60.0) == [worker]
    assert local._take_answer(worker, tries, 60.0) is None  # it is tried again
    mine.close()


@pytest.mark.multiprocess
def test_a_cell_that_takes_too_long_is_given_up():
    found = answers(cells("hang", "give 2", "give 3"), timeout=2.0)
    assert found[0].error == "gave no answer in 2 s"
    assert found[0].again
    assert (found[1].rows, found[2].rows) == ([{"value": 2}], [{"value": 3}])


@pytest.mark.multiprocess
def test_a_reader_that_stops_leaves_no_process_behind():
    before = set(multiprocessing.active_children())
    found = run_local(cells("give 1", "hang"), [0, 1], ask, workers=2, timeout=60.0)
    assert next(found).rows == [{"value": 1}]
    found.close()
    assert set(multiprocessing.active_children()) <= before


@pytest.mark.parametrize(("workers", "timeout"), [(0, 1.0), (1, 0.0)])
def test_nobody_answers_nothing(workers, timeout):
    with pytest.raises(UsageError, match="workers and timeout must"):
        next(run_local(cells("give 1"), [0], ask, workers=workers, timeout=timeout))


@pytest.fixture(scope="module")
def cluster():
    import dask
    from distributed import LocalCluster

    once = dask.config.set({"distributed.scheduler.allowed-failures": 0})
    with (
        once,
        LocalCluster(
            n_workers=2,
            threads_per_worker=1,
            processes=True,
            dashboard_address=":0",
            silence_logs=50,
        ) as made,
    ):
        yield made


@needs_dask
@pytest.mark.multiprocess
def test_a_cluster_of_two_answers_cells(cluster):
    asked = cells("give 1", "fail no", *(f"give {n}" for n in range(20)))
    found = run_on_dask(
        asked, [0, 1, *range(5, 22)], ask, address=cluster.scheduler_address, timeout=60
    )
    by_number = {answer.number: answer for answer in found}
    assert sorted(by_number) == [0, 1, *range(5, 22)]
    assert by_number[1].error == "no"
    assert all(by_number[n + 2].rows == [{"value": n}] for n in range(3, 20))


@needs_dask
@pytest.mark.multiprocess
def test_a_cell_that_kills_workers_is_said_and_the_others_are_answered(cluster):
    asked = cells("die", "give 2")
    found = run_on_dask(asked, [0, 1], ask, address=cluster.scheduler_address, timeout=60.0)
    by_number = {answer.number: answer for answer in found}
    assert "KilledWorker" in by_number[0].error
    assert by_number[1].rows == [{"value": 2}]


@needs_dask
@pytest.mark.multiprocess
def test_a_cell_that_takes_too_long_is_given_up_on_a_cluster(cluster):
    found = run_on_dask(cells("hang"), [0], ask, address=cluster.scheduler_address, timeout=2.0)
    (answer,) = found
    assert answer.error == "gave no answer in 2 s"


@needs_dask
def test_no_scheduler_is_said(monkeypatch):
    monkeypatch.setattr("weft.sweep.dask_cluster._CONNECT", 0.5)
    with pytest.raises(UsageError, match=r"no Dask scheduler answers at .tcp://127\.0\.0\.1:9"):
        next(run_on_dask(cells("give 1"), [0], ask, address="tcp://127.0.0.1:9", timeout=1.0))


@needs_dask
def test_a_scheduler_without_workers_is_said(monkeypatch):
    from distributed import LocalCluster

    monkeypatch.setattr("weft.sweep.dask_cluster._CONNECT", 0.5)
    with (
        LocalCluster(n_workers=0, processes=False, dashboard_address=":0") as empty,
        pytest.raises(RunError, match="has no workers"),
    ):
        next(run_on_dask(cells("give 1"), [0], ask, address=empty.scheduler_address, timeout=1.0))


def test_without_dask_it_is_said_how_to_get_it(monkeypatch):
    monkeypatch.setitem(__import__("sys").modules, "distributed", None)
    with pytest.raises(UsageError, match="needs the package distributed"):
        next(run_on_dask(cells("give 1"), [0], ask, address="x", timeout=1.0))
