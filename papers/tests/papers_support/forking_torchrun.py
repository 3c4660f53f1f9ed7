"""torchrun whose ranks are forks of it, so that all of them import PyTorch and the papers once.

Usage: ``forking_torchrun.py ARGUMENTS`` of torchrun.
"""

from __future__ import annotations

import sys
from importlib import import_module

from torch.distributed import run

if __name__ == "__main__":
    for name in ("torch._dynamo", "equipoise_papers.reproduction.reproduce"):
        import_module(name)
    run.main(["--run-path", "--start-method", "fork", *sys.argv[1:]])
