"""Which group processes make, where they compute, and what they send each other."""

from __future__ import annotations

import pytest
import torch
import torch.distributed as dist

from equipoise_papers.big.distributed import Ranks, from_rank_0, process_group


class TestGpus:
    """As if there were some: which group is made, and where ranks compute."""

    @pytest.mark.parametrize(("gpus", "backend"), [(2, "cpu:gloo,cuda:nccl"), (1, "gloo")])
    def test_groups_serve_the_cpu_too(self, monkeypatch, gpus, backend):
        made, chosen = [], []
        replaced = {
            "torch.cuda.is_available": lambda: True,
            "torch.cuda.device_count": lambda: gpus,
            "torch.cuda.set_device": chosen.append,
            "torch.distributed.is_torchelastic_launched": lambda: True,
            "torch.distributed.rendezvous": lambda *_, **__: iter([(dist.HashStore(), 1, 2)]),
            "torch.distributed.init_process_group": lambda name, **_: made.append(name),
            "torch.distributed.destroy_process_group": lambda: None,
        }
        for name, value in replaced.items():
            monkeypatch.setattr(name, value)
        monkeypatch.setenv("LOCAL_RANK", "1")
        monkeypatch.setenv("LOCAL_WORLD_SIZE", "2")
        with process_group():
            assert (made, chosen) == ([backend], [1] if gpus == 2 else [])

    @pytest.mark.parametrize(
        ("backends", "device"), [("cpu:gloo,cuda:nccl", "cuda:1"), ("cpu:gloo,cuda:gloo", "cpu")]
    )
    def test_ranks_say_where_to_compute(self, monkeypatch, backends, device):
        monkeypatch.setattr("torch.distributed.is_initialized", lambda: True)
        monkeypatch.setattr("torch.distributed.get_backend_config", lambda: backends)
        monkeypatch.setattr("torch.cuda.is_available", lambda: True)
        monkeypatch.setattr("torch.cuda.current_device", lambda: 1)
        assert Ranks(1, 2).device == torch.device(device)

    def test_groups_of_several_backends_exchange_objects(self):
        store = dist.HashStore()
        dist.init_process_group("cpu:gloo,cuda:gloo", store=store, rank=0, world_size=1)
        try:
            pretended = Ranks(0, 2)  # alone it would not ask the group
            assert from_rank_0("word", pretended) == "word"
        finally:
            dist.destroy_process_group()


def test_one_process_needs_no_group():
    with process_group() as here:
        assert here == Ranks(0, 1)
        assert not torch.distributed.is_initialized()
        assert here.device.type == ("cuda" if torch.cuda.is_available() else "cpu")
