"""One thread where others would keep it waiting, and the caller's number afterwards."""

import pytest
import torch
from threadpoolctl import threadpool_info

from equipoise.instrument import threads


@pytest.fixture
def two_threads():
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    yield
    torch.set_num_threads(before)


@pytest.mark.parametrize(("waiting", "chosen"), [(2, 1), (1, 2)])
def test_the_faster_number_is_used(monkeypatch, two_threads, waiting, chosen):
    """Two threads take long where ``waiting`` is 2, one thread where it is 1."""

    def seconds(run):
        return 1.0 if torch.get_num_threads() == waiting else 0.1

    monkeypatch.setattr(threads, "_seconds", seconds)
    with threads.suitable_threads():
        assert torch.get_num_threads() == chosen
    assert torch.get_num_threads() == 2


def test_the_number_is_restored_after_an_error(monkeypatch, two_threads):
    monkeypatch.setattr(threads, "_seconds", lambda run: float(torch.get_num_threads()))
    with pytest.raises(RuntimeError), threads.suitable_threads():
        raise RuntimeError
    assert torch.get_num_threads() == 2


def test_long_runs_are_not_repeated(monkeypatch, two_threads):
    runs = []
    with threads.suitable_threads() as refine:
        torch.set_num_threads(2)
        monkeypatch.setattr(threads, "_seconds", lambda run: run() or 1.0)
        refine(lambda: runs.append(1))
    assert len(runs) == 1


def test_one_thread_holds_for_linear_algebra_too(two_threads):
    with threads.one_thread():
        assert torch.get_num_threads() == 1
        assert {library["num_threads"] for library in threadpool_info()} == {1}
    assert torch.get_num_threads() == 2
