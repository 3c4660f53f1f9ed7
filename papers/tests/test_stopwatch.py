"""A stopwatch counts all seconds but those of paused blocks."""

import pytest
import torch

from equipoise_papers.stopwatch import Stopwatch


@pytest.fixture
def now(monkeypatch):
    """Seconds that tests let pass."""
    seconds = [5.0]
    monkeypatch.setattr("equipoise_papers.stopwatch.time.perf_counter", lambda: seconds[0])
    return seconds


def test_paused_blocks_do_not_count(now):
    watch = Stopwatch(torch.device("cpu"))
    now[0] += 1
    with watch.paused():
        now[0] += 100
    now[0] += 2
    assert watch.seconds() == 3


def test_blocks_that_raise_do_not_count(now):
    def fail():
        now[0] += 100
        raise KeyError

    watch = Stopwatch(torch.device("cpu"))
    with pytest.raises(KeyError), watch.paused():
        fail()
    assert watch.seconds() == 0


def test_the_gpu_is_waited_for(now, monkeypatch):
    """Work that was started before a pause ends before it, so that it counts."""
    device = torch.device("cuda", 1)
    pending = [0.0]

    def synchronize(waited_for):
        assert waited_for == device
        now[0] += pending.pop() if pending else 0.0

    monkeypatch.setattr("torch.cuda.synchronize", synchronize)
    watch = Stopwatch(device)
    pending.append(3.0)
    with watch.paused():
        pending.append(50.0)
    assert watch.seconds() == 3
