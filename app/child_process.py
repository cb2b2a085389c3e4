"""Children that end with this process, however it ends."""

import ctypes
import os
import signal
import sys
from collections.abc import Callable


def die_with_parent(parent: int) -> Callable[[], None] | None:
    """For the child to call before it becomes its program: the kernel kills it when the parent's thread ends.

    Only Linux has this; elsewhere a parent that is killed with SIGKILL leaves its children behind. The thread that
    starts the child must live as long as the child: the main thread, or one that watches it.
    """
    if sys.platform != "linux":
        return None
    libc = ctypes.CDLL(None, use_errno=True)  # loaded before the fork; the child must not load anything
    pr_set_pdeathsig = 1

    def in_child() -> None:
        libc.prctl(pr_set_pdeathsig, signal.SIGKILL)
        if os.getppid() != parent:  # the parent ended before prctl was called
            os._exit(1)

    return in_child
