"""Files that are either whole or absent: write beside the target, flush to disk, rename."""

from __future__ import annotations

import contextlib
import hashlib
import io
import json
import os
import tempfile
import zipfile
import zlib
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import IO, Any

import numpy as np
import numpy.typing as npt

from tood.errors import ToodError

__all__ = [
    "DAMAGE",
    "kind_of",
    "npy_header",
    "plain",
    "read_npz",
    "read_tensors",
    "sha256",
    "write_atomically",
    "write_file",
    "write_npz",
    "write_tensors",
    "write_text",
]

FORMAT = 1  # of every safetensors file written here
# What NumPy, zipfile and Pillow raise when they are given other bytes than they expect.
DAMAGE = (
    ArithmeticError,
    AttributeError,
    EOFError,
    LookupError,
    NotImplementedError,
    OSError,
    RuntimeError,
    TypeError,
    ValueError,
    zipfile.BadZipFile,
    zlib.error,
)


def write_atomically(path: str | os.PathLike[str], write: Callable[[Path], object]) -> None:
    """Have ``write`` fill a temporary file in the target's folder, then rename it onto ``path``.

    A crash, a full disk or an exception in ``write`` leaves the previous file as it was.

    Parameters
    ----------
    path:
        The file to make or replace; its folder must exist.
    write:
        Called with the temporary path, which it must fill.
    """
    target = Path(path)
    handle, name = tempfile.mkstemp(prefix=f".{target.name}.", suffix=".tmp", dir=target.parent)
    os.close(handle)
    temporary = Path(name)
    try:
        write(temporary)
        with temporary.open("rb+") as file:
            os.fsync(file.fileno())
        temporary.chmod(0o666 & ~_umask())
        temporary.replace(target)
    except BaseException:
        with contextlib.suppress(OSError):
            temporary.unlink()
        raise
    _sync_folder(target.parent)


def _umask() -> int:
    mask = os.umask(0)
    os.umask(mask)
    return mask


def _sync_folder(folder: Path) -> None:
    """Make the rename itself durable; some file systems refuse, and that is fine."""
    with contextlib.suppress(OSError):
        handle = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)


def write_file(path: Path, write: Callable[[Path], object]) -> None:
    """Write a file whole or not at all; a full disk or a read-only folder is one line that names the file."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        write_atomically(path, write)
    except OSError as error:
        raise ToodError(
            f"{path}: cannot be written ({error.strerror or error}); what was there before is as it was"
        ) from error


def write_text(path: Path, text: str) -> None:
    """Write UTF-8 as :func:`write_file` does."""
    write_file(path, lambda temporary: temporary.write_text(text, encoding="utf-8"))


def plain(value: Any) -> Any:
    """A NumPy number as Python's own: the ``default`` of :func:`json.dumps`."""
    return value.item()


def write_tensors(
    path: str | os.PathLike[str],
    kind: str,
    tensors: Mapping[str, npt.NDArray[Any]],
    metadata: Mapping[str, str],
) -> None:
    """Write arrays and text to one safetensors file of a given kind, atomically."""
    from safetensors.numpy import save

    arrays = {name: np.asarray(array, order="C") for name, array in tensors.items()}
    # One entry only: safetensors writes several in no fixed order, and equal content shall give equal bytes.
    payload = save(arrays, {"tood": json.dumps({"kind": kind, "format": FORMAT, **metadata}, sort_keys=True)})
    write_atomically(path, lambda temporary: temporary.write_bytes(payload))


def kind_of(path: str | os.PathLike[str]) -> str | None:
    """The kind of file that :func:`write_tensors` wrote; None where it did not, or the file cannot be read."""
    from safetensors import SafetensorError, safe_open

    try:
        with safe_open(os.fspath(path), framework="numpy") as file:
            found = json.loads((file.metadata() or {}).get("tood", "{}"))
    except (SafetensorError, OSError, ValueError):
        return None
    return found.get("kind") if isinstance(found, dict) else None


def read_tensors(path: str | os.PathLike[str], kind: str) -> tuple[dict[str, npt.NDArray[Any]], dict[str, str]]:
    """Read what :func:`write_tensors` wrote; another kind, a newer format or a damaged file is an error."""
    from safetensors import SafetensorError, safe_open

    name = os.fspath(path)
    try:
        with safe_open(name, framework="numpy") as file:
            metadata = dict(json.loads((file.metadata() or {}).get("tood", "{}")))
            found = metadata.pop("kind", "another safetensors file")
            if found != kind:
                raise ToodError(f"{name}: expected a {kind} file, found {found}")
            if metadata.pop("format", FORMAT + 1) > FORMAT:
                raise ToodError(f"{name}: written in a newer format than {FORMAT}: upgrade tood to read it")
            return {key: file.get_tensor(key) for key in file.keys()}, metadata  # noqa: SIM118
    except ToodError:
        raise
    except FileNotFoundError as error:
        raise ToodError(f"{name}: no such file") from error
    except (SafetensorError, OSError, TypeError, ValueError) as error:
        raise ToodError(f"{name}: cannot be read as safetensors ({error})") from error


def write_npz(path: Path, arrays: Mapping[str, npt.NDArray[Any]]) -> None:
    """Write plain arrays, uncompressed. The bytes depend on the arrays alone: NumPy dates every entry 1980."""

    def write(temporary: Path) -> None:
        with temporary.open("wb") as file:
            np.savez(file, **arrays)  # type: ignore[arg-type]

    for name, array in arrays.items():
        if array.dtype.hasobject:
            raise ToodError(f"{path}: {name}: expected numbers, found dtype {array.dtype}")
    write_file(path, write)


def read_npz(path: Path) -> tuple[dict[str, npt.NDArray[Any]], str]:
    """The arrays of an ``.npz`` file and the SHA-256 of exactly the bytes they came from."""
    try:
        data = path.read_bytes()
    except FileNotFoundError as error:
        raise ToodError(f"{path}: no such file") from error
    try:
        with np.load(io.BytesIO(data), allow_pickle=False) as file:
            arrays = {name: file[name] for name in file.files}
    except DAMAGE as error:
        raise ToodError(f"{path}: truncated, or not an .npz file of plain arrays ({error})") from error
    return arrays, hashlib.sha256(data).hexdigest()


def npy_header(file: IO[bytes]) -> tuple[tuple[int, ...], bool, np.dtype[Any]]:
    """Shape, whether in Fortran order, and dtype, from the start of an ``.npy`` file, which is left at its data."""
    version = np.lib.format.read_magic(file)
    read = np.lib.format.read_array_header_1_0 if version == (1, 0) else np.lib.format.read_array_header_2_0
    return read(file)


def sha256(path: str | os.PathLike[str]) -> str:
    """The SHA-256 of a file, in hexadecimal."""
    digest = hashlib.sha256()
    with Path(path).open("rb") as file:
        while chunk := file.read(1 << 20):
            digest.update(chunk)
    return digest.hexdigest()
