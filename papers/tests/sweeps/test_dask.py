"""A Dask cluster of two workers gives the records that this process gives."""

import pytest

from equipoise_papers.sweeps.backends import Engine, WorkerLostError
from equipoise_papers.sweeps.grid import sweep
from papers_support.toy_tasks import Draw, computed, records, store_in

dask = pytest.importorskip("dask")
distributed = pytest.importorskip(
    "distributed", reason="an extra: pip install 'equipoise-papers[dask]'"
)

pytestmark = pytest.mark.filterwarnings("ignore::ResourceWarning")  # Dask's own sockets


@pytest.fixture(scope="module")
def cluster():
    # A task is given up with its first worker: not waiting for three more to start saves time.
    settings = {"distributed.scheduler.allowed-failures": 0}
    with (
        dask.config.set(settings),
        distributed.LocalCluster(2, threads_per_worker=1, dashboard_address=":0") as cluster,
    ):
        yield cluster


@pytest.fixture
def engine(cluster):
    return Engine(backend="dask", scheduler=cluster.scheduler_address)


def test_records_are_equal(engine, tmp_path):
    log = tmp_path / "log"
    cells = tuple(Draw(seed, str(log)) for seed in (0, 1, 2, 3, -1))
    here = sweep(store_in(tmp_path / "here"), cells, engine=Engine(jobs=1))
    there = sweep(store_in(tmp_path / "there"), cells, engine=engine)
    assert records(here) == records(there)
    assert len(computed(log)) == 10
    # This process has written what its workers sent: they may have no common disk.
    again = sweep(store_in(tmp_path / "there"), cells[:4], engine=engine)
    assert records(again) == records({cell: there[cell] for cell in cells[:4]})
    assert len(computed(log)) == 10


def test_without_an_address_the_current_client_is_used(cluster, tmp_path):
    with distributed.Client(cluster):
        results = sweep(store_in(tmp_path), (Draw(1),), engine=Engine(backend="dask"))
    assert results[Draw(1)].record.threads == 1


def test_a_killed_worker_ends_the_sweep_and_keeps_the_rest(engine, tmp_path):
    """By itself, joblib would wait for ever."""
    trap = tmp_path / "trap"
    trap.touch()
    quick, deadly = Draw(1), Draw(2, trap=str(trap), seconds=0.5)
    with pytest.raises(WorkerLostError, match="1 of the 2 cells that were missing are finished"):
        sweep(store_in(tmp_path), (quick, deadly), engine=engine)
    assert store_in(tmp_path).finished(quick) is not None
    assert "its worker was killed" in store_in(tmp_path).load(deadly).failure


def test_workers_with_several_threads_are_refused(tmp_path):
    """Their cells would draw from one global generator."""
    workers = {"n_workers": 1, "threads_per_worker": 2, "processes": False}
    with distributed.LocalCluster(**workers, dashboard_address=":0") as cluster:
        engine = Engine(backend="dask", scheduler=cluster.scheduler_address)
        with pytest.raises(ValueError, match="workers of the Dask cluster have several threads"):
            sweep(store_in(tmp_path), (Draw(1),), engine=engine)


def test_no_scheduler_at_that_address(tmp_path, monkeypatch):
    monkeypatch.setattr("equipoise_papers.sweeps.clusters._PATIENCE", 0.5)
    engine = Engine(backend="dask", scheduler="tcp://127.0.0.1:9")
    with pytest.raises(ValueError, match=r"no Dask scheduler answers at 'tcp://127\.0\.0\.1:9'"):
        sweep(store_in(tmp_path), (Draw(1),), engine=engine)


def test_without_address_or_client_it_asks_for_one(tmp_path):
    with pytest.raises(ValueError, match="which Dask cluster"):
        sweep(store_in(tmp_path), (Draw(1),), engine=Engine(backend="dask"))
