"""Commands in processes of their own, forked from one that has imported torch: a start costs no import.

As ``subprocess.run([sys.executable, "-m", "tood.cli", …])``, with the same exit code, output, signals and isolation.
What is asserted about imports, entry points or PYTHONPATH still needs an interpreter of its own.
"""

from __future__ import annotations

import multiprocessing
import os
import sys
import tempfile
from pathlib import Path
from subprocess import CompletedProcess

METHOD = "forkserver" if "forkserver" in multiprocessing.get_all_start_methods() else "spawn"
CONTEXT = multiprocessing.get_context(METHOD)
CONTEXT.set_forkserver_preload(
    [f"tood.commands.{name}" for name in ("audit", "data", "report", "run", "sweep")]
    + ["tood.runs.stages", "tood.report.tables", "pyarrow.parquet", "scipy.stats", "sklearn.datasets", "torch._dynamo"]
)


class Process:
    """A started command; ``pid`` takes signals."""

    def __init__(self, arguments, *, code=None, cwd=None, env=None, limit=None):
        self.arguments = [str(argument) for argument in arguments]
        self._folder = tempfile.TemporaryDirectory()
        given = (self.arguments, code, str(cwd or Path.cwd()), dict(env or os.environ), limit, self._folder.name)
        self._process = CONTEXT.Process(target=_command, args=given)
        self._process.start()
        self.pid = self._process.pid

    def running(self):
        return self._process.is_alive()

    def wait(self, timeout=120):
        """Exit code, output and error output once the command has ended."""
        self._process.join(timeout)
        if self.running():
            self._process.kill()
            raise TimeoutError(f"{self.arguments} took more than {timeout} s")
        texts = [Path(self._folder.name, name).read_text() for name in ("stdout", "stderr")]
        self._folder.cleanup()
        return CompletedProcess(self.arguments, self._process.exitcode, *texts)


def tood(*arguments, timeout=240, **options):
    """The command line with these arguments; ``limit`` is the largest file it may write."""
    return Process(arguments, **options).wait(timeout)


def python(code, *arguments, timeout=240, **options):
    """``python -c code arguments``."""
    return Process(arguments, code=code, **options).wait(timeout)


def _command(arguments, code, cwd, env, limit, folder):
    for number, name in ((1, "stdout"), (2, "stderr")):
        os.dup2(os.open(Path(folder, name), os.O_WRONLY | os.O_CREAT), number)
    os.chdir(cwd)
    os.environ.clear()
    os.environ.update(env)
    sys.argv, sys.path[:0] = ["tood", *arguments], [cwd]
    if limit is not None:
        import resource

        resource.setrlimit(resource.RLIMIT_FSIZE, (limit, limit))
        sys.dont_write_bytecode = True  # Python would keep truncated .pyc files
    if code is not None:
        exec(compile(code, "<code>", "exec"), {"__name__": "__main__"})
    else:
        from tood.cli import main

        main()
