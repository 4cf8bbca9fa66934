"""Durations as text."""

from __future__ import annotations

__all__ = ["duration"]


def duration(seconds: float) -> str:
    """Seconds below a minute, then hours:minutes:seconds.

    >>> [duration(seconds) for seconds in (3.21, 42.4, 59.7, 200, 7503)]
    ['3.2 s', '42 s', '0:01:00', '0:03:20', '2:05:03']
    """
    if seconds < 9.95:
        return f"{seconds:.1f} s"
    whole = round(seconds)
    return f"{whole} s" if whole < 60 else f"{whole // 3600}:{whole // 60 % 60:02d}:{whole % 60:02d}"
