"""Memory on the CPU: keep what one batch frees for the next."""

from __future__ import annotations

import contextlib
import ctypes
import sys

__all__ = ["keep_freed_memory"]

M_TRIM_THRESHOLD, M_MMAP_THRESHOLD = -1, -3  # of malloc.h
LARGEST = 32 << 20  # bytes: larger blocks never come from the heap, whatever is asked for


def keep_freed_memory() -> None:
    """Let the C library keep the memory that a batch frees, because the next one needs it again.

    By default glibc returns hundreds of megabytes to the system after every batch and gets them back page by page,
    which can take 40 % of the time; ``benchmarks/training.py`` and ``benchmarks/features.py`` measure it. Linux only.
    """
    if not sys.platform.startswith("linux"):
        return
    with contextlib.suppress(AttributeError, OSError):  # a C library without mallopt
        mallopt = ctypes.CDLL(None).mallopt
        mallopt(M_MMAP_THRESHOLD, LARGEST)
        mallopt(M_TRIM_THRESHOLD, (1 << 31) - 1)
