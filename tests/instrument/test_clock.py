"""The clock counts what it should, and waits for a device only where asked."""

import pytest
import torch

from equipoise.instrument import clock as clock_module
from equipoise.instrument.clock import Clock


class FakeTime:
    """Seconds that pass only when a test says so, and a device that counts who waits."""

    def __init__(self):
        self.now, self.waits = 100.0, 0

    def perf_counter(self):
        return self.now

    def synchronize(self, device=None):
        self.waits += 1


@pytest.fixture
def time(monkeypatch):
    fake = FakeTime()
    monkeypatch.setattr(clock_module, "time", fake)
    monkeypatch.setattr(torch, "get_device_module", lambda device: fake)
    monkeypatch.setattr(torch.mps, "synchronize", lambda: fake.synchronize())
    return fake


class TestSeconds:
    def test_begin_with_the_first_start(self, time):
        clock = Clock(torch.device("cpu"))
        assert clock.seconds() == 0
        clock.start()
        time.now += 2
        clock.start()
        time.now += 3
        assert clock.seconds() == 5

    def test_leave_out_paused_sections(self, time):
        clock = Clock(torch.device("cpu"))
        with clock.paused():
            time.now += 1
        clock.start()
        time.now += 2
        with clock.paused():
            time.now += 4
        time.now += 8
        assert (clock.seconds(), clock.paused_seconds) == (10, 5)

    def test_parts_add_up_also_after_an_exception(self, time):
        clock = Clock(torch.device("cpu"))
        clock.start()

        def fail_after_a_second():
            with clock.paused(), clock.part("a"):
                time.now += 1
                raise ZeroDivisionError

        for _ in range(2):
            with pytest.raises(ZeroDivisionError):
                fail_after_a_second()
        with clock.part("b"):
            time.now += 4
        assert clock.parts == {"a": 2, "b": 4}
        assert (clock.seconds(), clock.paused_seconds) == (4, 2)


@pytest.mark.parametrize(("device", "waits"), [("cpu", 0), ("meta", 0), ("cuda", 1), ("mps", 1)])
class TestWaiting:
    def test_happens_on_demand(self, time, device, waits):
        clock = Clock(torch.device(device))
        clock.start()
        clock.seconds()
        assert time.waits == 0
        clock.seconds(wait=True)
        assert time.waits == waits
        Clock(torch.device(device)).start(wait=True)
        assert time.waits == 2 * waits

    def test_happens_at_both_ends_of_sections(self, time, device, waits):
        clock = Clock(torch.device(device))
        with clock.paused():
            assert time.waits == waits
        with clock.part("a"):
            pass
        assert time.waits == 4 * waits
