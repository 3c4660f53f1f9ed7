"""No finished cell is computed twice or lost, and its numbers are the same wherever it runs."""

import numpy as np
import pytest
import torch
from threadpoolctl import threadpool_info

from equipoise_papers.sweeps.backends import Engine, WorkerLostError
from equipoise_papers.sweeps.grid import sweep
from equipoise_papers.sweeps.worker import one_thread
from papers_support.toy_tasks import Draw, computed, records, store_in

HERE, THREADS, PROCESSES = Engine(jobs=1), Engine(backend="threading", jobs=2), Engine(jobs=2)


@pytest.fixture
def log(tmp_path):
    return tmp_path / "log"


@pytest.fixture
def store(tmp_path):
    return store_in(tmp_path / "cells")


def draws(log, *seeds, **changes):
    return tuple(Draw(seed, str(log), **changes) for seed in seeds)


@pytest.fixture(params=[1, 2], ids=["one thread", "two threads"])
def threads(request):
    """What the user's process computes with, before a sweep and after."""
    before = torch.get_num_threads()
    torch.set_num_threads(request.param)
    yield request.param
    assert torch.get_num_threads() == request.param
    torch.set_num_threads(before)


class TestWhereverItRuns:
    """The same cell gives the same bits, on any number of workers."""

    def test_records_are_equal(self, threads, tmp_path, log):
        cells = draws(log, *range(6), -1)
        found = [
            records(sweep(store_in(tmp_path / str(number)), cells, engine=engine))
            for number, engine in enumerate((HERE, THREADS, PROCESSES))
        ]
        assert found[0] == found[1] == found[2]
        assert found[0][cells[-1]] == (None, "FloatingPointError: the loss is nan")
        assert {record.threads for record, _ in found[0].values() if record} == {1}

    def test_outside_a_sweep_threads_are_the_users(self, threads):
        """The twin: the user's threads would be part of the record."""
        assert Draw(0).run().threads == threads

    def test_blas_keeps_to_one_core_too(self):
        with one_thread():
            np.eye(2) @ np.eye(2)
            assert {library["num_threads"] for library in threadpool_info()} == {1}


class TestResuming:
    def test_what_is_stored_is_not_computed_again(self, store, log):
        sweep(store, draws(log, 1, 2), engine=HERE)
        results = sweep(store, draws(log, 1, 2, 3), engine=HERE)
        assert computed(log) == [1, 2, 3]
        assert [cell.seed for cell in results] == [1, 2, 3]

    def test_failed_cells_are_tried_again_after_all_others(self, store, log):
        sweep(store, draws(log, -1), engine=HERE)
        sweep(store, draws(log, -1, 2, 3), engine=HERE)
        assert computed(log) == [-1, 2, 3, -1]

    def test_a_cell_that_another_sweep_finished_meanwhile_is_read(self, store, log, tmp_path):
        first, second = draws(log, 1, 2)
        other = store_in(tmp_path / "other")
        sweep(other, (second,), engine=HERE)

        def finish_second(stage, done, total):
            if done == 1:
                store.save(other.load(second))

        sweep(store, (first, second), engine=HERE, progress=finish_second)
        assert computed(log) == [2, 1]

    @pytest.mark.parametrize("engine", [HERE, THREADS], ids=["here", "threads"])
    def test_an_interruption_keeps_what_is_finished(self, store, log, engine):
        cells = draws(log, *range(40), seconds=0.01)

        def interrupt(stage, done, total):
            if done == 3:
                raise KeyboardInterrupt

        with pytest.raises(KeyboardInterrupt):
            sweep(store, cells, engine=engine, progress=interrupt)
        assert 3 <= sum(store.finished(cell) is not None for cell in cells) < 20
        sweep(store, cells, engine=HERE)
        # Threads cannot be stopped: those at work may finish a cell that this sweep has begun.
        assert 40 <= len(computed(log)) <= 40 + (engine.jobs if engine is THREADS else 0)


class TestProgress:
    def test_it_starts_with_what_is_stored(self, store, log):
        sweep(store, draws(log, 1, 2), engine=HERE)
        steps = []
        sweep(store, draws(log, 1, 2, 3), engine=HERE, progress=lambda *s: steps.append(s))
        assert steps == [("toy.totals", 2, 3), ("toy.totals", 3, 3)]


class TestBeginningHere:
    """Quick work needs no workers; two seconds times ten cells do."""

    @pytest.mark.parametrize(("seconds", "here"), [(0.0, 4), (0.4, 1)])
    def test_workers_are_started_when_the_rest_is_worth_it(
        self, store, log, monkeypatch, seconds, here
    ):
        monkeypatch.setattr("equipoise_papers.sweeps.grid._WORTH_WORKERS", 1.0)
        monkeypatch.setattr(Engine, "stream", refuse)
        cells = draws(log, 1, 2, 3, 4, seconds=seconds)
        if here == 4:
            sweep(store, cells, engine=PROCESSES, begin_here=True)
        else:
            with pytest.raises(AssertionError, match="workers for 3 cells"):
                sweep(store, cells, engine=PROCESSES, begin_here=True)
        assert len(computed(log)) == here


def refuse(engine, work, items, *, most):
    raise AssertionError(f"workers for {most} cells")


def test_a_killed_worker_costs_only_what_was_being_computed(store, log, tmp_path):
    """It says so, and the next sweep comes to the deadly cell last."""
    trap = tmp_path / "trap"
    trap.touch()
    deadly = Draw(4, str(log), str(trap), seconds=0.3)
    cells = (*draws(log, *range(4)), deadly, *draws(log, 5, 6, seconds=1.5))
    message = "toy.totals was killed.* 4 of the 7 cells that were missing are finished and stored"
    with pytest.raises(WorkerLostError, match=message):
        sweep(store, cells, engine=PROCESSES)
    assert all(store.finished(cell) for cell in cells[:4])
    assert store.load(deadly).failure == "its worker was killed, or one beside it"
    trap.unlink()
    begun = len(computed(log))
    sweep(store, cells, engine=HERE)
    assert computed(log)[begun:] == [6, 4, 5]


def test_a_folder_that_cannot_be_written_to(tmp_path, log):
    (tmp_path / "file").write_text("")
    with pytest.raises(ValueError, match="cannot write records"):
        sweep(store_in(tmp_path / "file"), draws(log, 1), engine=HERE)
    assert computed(log) == []
