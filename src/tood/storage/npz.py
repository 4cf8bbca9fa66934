"""``.npz`` files of plain arrays. A damaged file, or one that claims more data than it holds, is an error."""

from __future__ import annotations

import hashlib
import os
import zipfile
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import IO, Any

import numpy as np
import numpy.typing as npt

from tood.errors import ToodError
from tood.storage.files import reading, write_file

__all__ = ["npy_header", "npz_member", "npz_names", "read_npz", "write_npz"]

# Bytes of an array, and of all that are read from a file; more must not be compressed more than TIGHTEST times. Sorted
# labels may be, but there is one such array, while a run has hundreds of files.
LARGEST_ARRAY, LARGEST_FILE, TIGHTEST = 1 << 25, 1 << 22, 100
NOT_NPZ = "truncated, or not an .npz file of plain arrays"
CHUNK = 1 << 18  # bytes hashed at once: they stay in the cache
ZIP_END = 22  # bytes of the record that ends a zip file, without its comment


def write_npz(path: Path, arrays: Mapping[str, npt.NDArray[Any]]) -> None:
    """Write arrays uncompressed. Equal arrays give equal bytes, since NumPy dates every zip entry 1980."""

    def write(temporary: Path) -> None:
        with temporary.open("wb") as file:
            np.savez(file, **arrays)  # type: ignore[arg-type]

    for name, array in arrays.items():
        if array.dtype.hasobject:
            raise ToodError(f"{path}: {name}: expected numbers, found dtype {array.dtype}")
    write_file(path, write)


def read_npz(path: Path, wanted: Collection[str] | None = None) -> tuple[dict[str, npt.NDArray[Any]], str]:
    """The arrays of an ``.npz`` file and the SHA-256 of its bytes, both from one open file.

    A writer that replaces the file by another, as :func:`write_npz` does, cannot make them disagree.

    Parameters
    ----------
    path:
        The file. If its header declares more data than its bytes can hold, that is an error before any allocation.
    wanted:
        Read these arrays only, if they are there; all if None.
    """
    with reading(path, NOT_NPZ), path.open("rb") as file:
        digest = hashlib.sha256()
        while chunk := file.read(CHUNK):
            digest.update(chunk)
        with zipfile.ZipFile(file) as archive:
            members = _members(archive, file)
            chosen = {name: info for name, info in members.items() if wanted is None or name in wanted}
            _check_size(chosen.values(), LARGEST_FILE)
            return {name: _array(archive, info) for name, info in chosen.items()}, digest.hexdigest()


def npz_member(path: Path, name: str) -> npt.NDArray[Any]:
    """One array of an ``.npz`` file, read without the others."""
    with reading(path, NOT_NPZ), path.open("rb") as file, zipfile.ZipFile(file) as archive:
        members = _members(archive, file)
        if name not in members:
            raise ToodError(f"{path}: expected an array {name!r}, found {', '.join(members) or 'none'}")
        _check_size([members[name]], LARGEST_ARRAY)
        return _array(archive, members[name])


def npz_names(path: Path) -> list[str]:
    """The names of the arrays of an ``.npz`` file. Reads no data."""
    with reading(path, NOT_NPZ), path.open("rb") as file, zipfile.ZipFile(file) as archive:
        return list(_members(archive, file))


def _members(archive: zipfile.ZipFile, file: IO[bytes]) -> dict[str, zipfile.ZipInfo]:
    """The members of an archive by array name; raises if damage renamed one or removed it from the directory."""
    infos = archive.infolist()
    for info in infos:
        archive.open(info).close()  # raises unless the member has this name too
    file.seek(-ZIP_END - len(archive.comment), os.SEEK_END)
    count = int.from_bytes(file.read(ZIP_END)[10:12], "little")
    if count not in (len(infos), 0xFFFF):  # 0xFFFF: too many for 16 bits
        raise zipfile.BadZipFile(f"the directory lists {len(infos)} of {count} members")
    members = {info.filename.removesuffix(".npy"): info for info in infos}
    if len(members) < len(infos):
        raise zipfile.BadZipFile("two members have the same name")
    return members


def _check_size(infos: Collection[zipfile.ZipInfo], largest: int) -> None:
    """Raise if members are implausibly large for their compressed bytes."""
    size, packed = sum(info.file_size for info in infos), sum(info.compress_size for info in infos)
    if size > max(largest, TIGHTEST * packed):
        raise ValueError(f"{', '.join(info.filename for info in infos)}: {packed} bytes unpack to {size}")


def _array(archive: zipfile.ZipFile, info: zipfile.ZipInfo) -> npt.NDArray[Any]:
    """An array; raises if its size differs from its header."""
    with archive.open(info) as file:
        shape, _, dtype = npy_header(file)
        expected = file.tell() + int(np.prod(shape, dtype=object)) * dtype.itemsize
    if dtype.hasobject:
        raise ValueError(f"{info.filename}: expected numbers, found Python objects")
    if min(shape, default=0) < 0 or info.file_size != expected:
        raise ValueError(f"{info.filename}: shape {shape} needs {expected} bytes, found {info.file_size}")
    with archive.open(info) as file:
        array: npt.NDArray[Any] = np.lib.format.read_array(file, allow_pickle=False)
        file.read()  # compares the checksum
    return array


def npy_header(file: IO[bytes]) -> tuple[tuple[int, ...], bool, np.dtype[Any]]:
    """Shape, Fortran order and dtype of an ``.npy`` file; leaves the file positioned at its data."""
    version = np.lib.format.read_magic(file)
    read = np.lib.format.read_array_header_1_0 if version == (1, 0) else np.lib.format.read_array_header_2_0
    return read(file)
