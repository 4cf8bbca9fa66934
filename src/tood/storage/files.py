"""Reading and writing files. A file is complete or absent: write to a temporary name, fsync, rename."""

from __future__ import annotations

import contextlib
import csv
import hashlib
import io
import json
import os
import re
import secrets
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from tood.errors import ToodError

__all__ = ["csv_text", "file_name", "kind_of", "printable", "read_tensors", "reading", "write_file", "write_tensors"]

FORMAT = 2  # of every safetensors file written here; since 2 a file holds a digest of its content
HOUR = 3600.0  # seconds
LEFTOVER = re.compile(r"\..+\.[0-9a-f]{16}\.tmp")
NAME = re.compile(r"\w[\w.+-]*")  # names that become file names as they are
NUMBER = re.compile(r"[+-]?\d+(\.\d*)?([eE][+-]?\d+)?", re.ASCII)


def file_name(text: str) -> str:
    """A safe file name made from any text: letters, digits and ``. _ + -``; never a path, never hidden.

    >>> file_name("../../etc/passwd"), file_name("bic+ber"), file_name("")
    ('etc-passwd', 'bic+ber', 'unnamed')
    """
    name = re.sub(r"[^\w.+-]+", "-", text).lstrip(".-")
    return name.encode()[:120].decode(errors="ignore") or "unnamed"


def write_atomically(path: str | os.PathLike[str], write: Callable[[Path], object]) -> None:
    """Write a file so that a crash, a full disk or an exception leaves the previous version unchanged.

    ``write`` fills a temporary file in the same folder, which is then renamed to ``path``. An OSError becomes a
    ToodError that names the file.

    Parameters
    ----------
    path:
        The file to create or replace; its folder must exist.
    write:
        Called with the temporary path; must write that file.
    """
    target = Path(path)
    if not target.parent.is_dir():
        raise ToodError(f"{target.parent}: no such folder; make it first, or write {target.name} elsewhere")
    remove_leftovers(target.parent, ".*.tmp")
    start = os.fsencode(target.name)[:100].decode(errors="ignore")  # systems limit the bytes of a name
    temporary = target.parent / f".{start}.{secrets.token_hex(8)}.tmp"
    try:
        os.close(os.open(temporary, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o666))
        write(temporary)
        with temporary.open("rb+") as file:
            os.fsync(file.fileno())
        temporary.replace(target)
    except BaseException as error:
        with contextlib.suppress(OSError):
            temporary.unlink(missing_ok=True)
        if isinstance(error, OSError):
            raise _not_written(target, error) from error
        raise


def _not_written(path: Path, error: OSError) -> ToodError:
    return ToodError(f"{path}: cannot be written ({error.strerror or error}); the previous version is unchanged")


def remove_leftovers(folder: Path, pattern: str = "**/.*.tmp") -> None:
    """Remove temporary files of writers that were killed: those that have not changed for an hour."""
    with contextlib.suppress(OSError):
        for file in folder.glob(pattern):
            if LEFTOVER.fullmatch(file.name) and time.time() - file.stat().st_mtime > HOUR:
                file.unlink(missing_ok=True)


def write_file(path: Path, write: Callable[[Path], object]) -> None:
    """Like :func:`write_atomically`, and creates the folder."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise _not_written(path, error) from error
    write_atomically(path, write)


def write_text(path: Path, text: str) -> None:
    """Write UTF-8 text with :func:`write_file`."""
    write_file(path, lambda temporary: temporary.write_text(text, encoding="utf-8"))


def csv_text(rows: Sequence[Mapping[str, Any]], names: Sequence[str] = ()) -> str:
    """Rows as CSV: one column per name, by default every name that occurs; cells without a value are empty.

    Text that a spreadsheet would run as a formula gets a leading quote.
    """
    text = io.StringIO()
    names = names or list(dict.fromkeys(name for row in rows for name in row))
    writer = csv.DictWriter(text, names, restval="", lineterminator="\n")
    writer.writeheader()
    writer.writerows({name: csv_cell(value) for name, value in row.items()} for row in rows)
    return text.getvalue()


def csv_cell(value: Any) -> Any:
    """Text without control characters, and quoted if a spreadsheet would run it; numbers and other values unchanged."""
    if not isinstance(value, str) or NUMBER.fullmatch(value):
        return value
    text = printable(value)
    return f"'{text}" if text.lstrip().startswith(("=", "+", "-", "@")) else text


def printable(text: str, keep: str = "") -> str:
    r"""Text without control characters: an escape sequence in a name must not reach a terminal or break a table.

    >>> print(printable("two\nlines \x1b[2J"))
    two\x0alines \x1b[2J
    """
    return "".join(c if c.isprintable() or c in keep else f"\\x{ord(c):02x}" for c in text)


def plain(value: Any) -> Any:
    """A NumPy scalar or array as Python numbers: the ``default`` argument of ``json.dumps``."""
    return value.tolist()


def for_json(value: Any) -> Any:
    """A value ready for ``json.dumps``: arrays as lists, NumPy scalars as Python numbers, NaN as None."""
    if isinstance(value, dict):
        return {name: for_json(entry) for name, entry in value.items()}
    if isinstance(value, (np.ndarray, np.generic)):
        value = value.tolist()
    if isinstance(value, (list, tuple)):
        return [for_json(entry) for entry in value]
    return None if value != value else value


def write_tensors(
    path: str | os.PathLike[str], kind: str, tensors: Mapping[str, npt.NDArray[Any]], metadata: Mapping[str, str]
) -> None:
    """Write arrays and text to one safetensors file of a given kind, atomically, with a digest of both."""
    from safetensors.numpy import save

    arrays = {name: np.asarray(array, order="C") for name, array in tensors.items()}
    described = {"kind": kind, "format": FORMAT, **metadata}
    described["digest"] = _digest(arrays, described)
    # One entry only: safetensors writes several in no fixed order, and equal content must give equal bytes.
    payload = save(arrays, {"tood": json.dumps(described, sort_keys=True)})
    write_atomically(path, lambda temporary: temporary.write_bytes(payload))


def _digest(arrays: Mapping[str, npt.NDArray[Any]], described: Mapping[str, Any]) -> str:
    """The SHA-256 of the names, types, shapes and values of arrays and of their description."""
    digest = hashlib.sha256(json.dumps(dict(described), sort_keys=True).encode())
    for name in sorted(arrays):
        array = arrays[name]
        digest.update(f"{name}\0{array.dtype.str}\0{array.shape}\0".encode())
        digest.update(np.ascontiguousarray(array).data if array.size else b"")
    return digest.hexdigest()


def kind_of(path: str | os.PathLike[str]) -> str | None:
    """The kind of a file that :func:`write_tensors` wrote; None for any other or unreadable file."""
    from safetensors import SafetensorError, safe_open

    try:
        with safe_open(os.fspath(path), framework="numpy") as file:
            return _description(file).get("kind")
    except (SafetensorError, OSError, ValueError):
        return None


def _description(file: Any) -> dict[str, Any]:
    """What :func:`write_tensors` wrote about an open safetensors file; empty if something else wrote it."""
    description = json.loads((file.metadata() or {}).get("tood", "{}"))
    return description if isinstance(description, dict) else {}


def read_tensors(path: str | os.PathLike[str], kind: str) -> tuple[dict[str, npt.NDArray[Any]], dict[str, str]]:
    """Read a file of :func:`write_tensors`. Another kind, a newer format or a damaged file is a ToodError."""
    from safetensors import safe_open

    name = os.fspath(path)
    with reading(Path(path), "cannot be read as safetensors"), safe_open(name, "numpy") as file:
        metadata = _description(file)
        if metadata.get("kind") != kind:
            other = metadata.get("kind") or "another safetensors file"
            raise ToodError(f"{name}: expected a {kind} file, found {other}")
        version = metadata.get("format")
        if not isinstance(version, int) or version < 1:
            raise ToodError(f"{name}: damaged: expected a format number, found {version!r}")
        if version > FORMAT:
            raise ToodError(f"{name}: written in a newer format than {FORMAT}: upgrade tood to read it")
        arrays = {key: file.get_tensor(key) for key in file.keys()}  # noqa: SIM118
    digest = metadata.pop("digest", None)
    if version >= 2 and digest != _digest(arrays, metadata):
        raise ToodError(f"{name}: damaged: its content does not match its digest; restore it from a copy")
    return arrays, {key: value for key, value in metadata.items() if key not in ("kind", "format")}


@contextlib.contextmanager
def reading(path: Path, problem: str) -> Iterator[None]:
    """Turn any error into ``PATH: problem (reason)``: readers of damaged files raise many kinds."""
    try:
        _check_regular(path)
        yield
    except ToodError:
        raise
    except FileNotFoundError as error:
        raise ToodError(f"{path}: no such file") from error
    except (PermissionError, IsADirectoryError) as error:
        raise ToodError(f"{path}: cannot be read ({error.strerror})") from error
    except Exception as error:
        reason = str(error).splitlines()[0] if str(error) else type(error).__name__
        raise ToodError(f"{path}: {problem} ({reason})") from error


def contained(folder: Path, path: Path) -> Path:
    """``path``, which is below ``folder`` even if links are followed, and no pipe or device; raises if not."""
    target = path.resolve()
    if not target.is_relative_to(folder.resolve()):
        raise ToodError(f"{path}: leads out of {folder}, to {target}; such a link is not followed")
    _check_regular(path)
    return path


def _check_regular(path: Path) -> None:
    """Raise for a pipe or device: reading one may never end."""
    if path.exists() and not (path.is_file() or path.is_dir()):
        raise ToodError(f"{path}: expected a regular file, found a pipe or device")


def sha256(path: str | os.PathLike[str]) -> str:
    """The SHA-256 of a file, in hexadecimal."""
    digest = hashlib.sha256()
    with Path(path).open("rb") as file:
        while chunk := file.read(1 << 20):
            digest.update(chunk)
    return digest.hexdigest()
