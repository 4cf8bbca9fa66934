"""Ray tasks: function calls on the cluster of ``RAY_ADDRESS``, on a running Ray, or on this machine's cores."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator, Mapping
from typing import Any, TypeVar

from tood.errors import MissingDependencyError, ToodError

__all__ = ["ray_tasks"]

KeyT = TypeVar("KeyT", bound=Hashable)


def ray_tasks(
    function: Callable[..., Any], calls: Mapping[KeyT, tuple[Any, ...]], **options: Any
) -> Iterator[tuple[KeyT, Any, str]]:
    """Call a function once per key, each call a Ray task with one core; yield the outcomes in order of completion.

    If a worker or node dies, its task is tried again elsewhere. If Ray was started here, it is stopped at the end.

    Parameters
    ----------
    function:
        The function; Ray must be able to serialise it.
    calls:
        The arguments, by key.
    options:
        Options of ``ray.remote``, such as ``max_retries``.

    Yields
    ------
    ``(key, result, "")``, or ``(key, None, why)`` if Ray gave up.
    """
    try:
        import ray
    except ImportError as error:
        raise MissingDependencyError("ray", "ray", "--engine ray") from error
    mine = not ray.is_initialized()
    if mine:
        try:
            ray.init(log_to_driver=False, include_dashboard=False)
        except Exception as error:  # Ray has no class of its own for this
            ray.shutdown()
            raise ToodError(f"--engine ray: Ray did not start: {' '.join(str(error).split())}") from error
    try:
        remote = ray.remote(num_cpus=1, **options)(function)
        jobs = {remote.remote(*arguments): key for key, arguments in calls.items()}
        while jobs:
            (job,), _ = ray.wait(list(jobs), num_returns=1)
            key = jobs.pop(job)
            try:
                result = ray.get(job)
            except ray.exceptions.RayError as error:
                yield key, None, str(error).strip().splitlines()[-1]
            else:
                yield key, result, ""
    finally:
        if mine:
            ray.shutdown()
