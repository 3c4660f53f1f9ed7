"""End a process when its parent does, however that ends."""

from __future__ import annotations

import ctypes
import os
import signal
import sys
import threading
import time

# Seconds between two looks at whether the parent is still there.
_WATCH = 0.2
# Linux's option of prctl by which the kernel sends a signal when the parent ends.
_PR_SET_PDEATHSIG = 1


def end_with_parent(parent: int) -> None:
    """Make this process end when its parent does, also after ``kill -9``.

    Otherwise it would go on, and write what the resumed run writes too.

    Args:
        parent: Its process id.
    """
    if sys.platform == "linux":
        # At once, even while a library is loading. What is half written is never renamed.
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)

    def watch() -> None:
        while os.getppid() == parent:
            time.sleep(_WATCH)
        os._exit(1)

    threading.Thread(target=watch, name="equipoise-parent-watch", daemon=True).start()
