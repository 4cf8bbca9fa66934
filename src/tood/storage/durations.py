"""Durations as text."""

from __future__ import annotations

__all__ = ["duration"]


def duration(seconds: float) -> str:
    """Seconds below a minute, then hours:minutes:seconds, then days above 100 hours.

    >>> [duration(seconds) for seconds in (3.21, 42.4, 59.7, 200, 7503, 864_000)]
    ['3.2 s', '42 s', '0:01:00', '0:03:20', '2:05:03', '10.0 days']
    """
    if seconds < 9.95:
        return f"{seconds:.1f} s"
    whole = round(seconds)
    if whole >= 360_000:
        return f"{whole / 86_400:.1f} days"
    return f"{whole} s" if whole < 60 else f"{whole // 3600}:{whole // 60 % 60:02d}:{whole % 60:02d}"
