"""Files: whole or absent, verified when read, never larger in memory than their bytes can hold."""

import hashlib
import io
import json
import os
import zipfile

import numpy as np
import pytest

from tood import TOOD, ToodError
from tood.storage import files
from tood.storage.files import file_name, read_tensors, write_atomically, write_tensors
from tood.storage.npz import npz_member, npz_names, read_npz, write_npz

ARRAYS = {"a": np.arange(6.0).reshape(2, 3), "b": np.array([1, 2], np.int32), "empty": np.empty((0, 4))}


def flips(data, count, seed=0):
    rng = np.random.default_rng(seed)
    for place, bit in zip(rng.integers(len(data), size=count), rng.integers(8, size=count), strict=True):
        changed = bytearray(data)
        changed[place] ^= 1 << bit
        yield bytes(changed)


def test_a_flipped_bit_never_changes_tensors_silently(tmp_path):
    path = tmp_path / "f"
    write_tensors(path, "kind", ARRAYS, {"note": "text"})
    known, metadata = read_tensors(path, "kind")
    data = path.read_bytes()
    refused = 0
    for changed in flips(data, 1500):
        path.write_bytes(changed)
        try:
            arrays, found = read_tensors(path, "kind")
        except ToodError as error:
            refused += str(path) in str(error)
            continue
        assert found == metadata and arrays.keys() == known.keys()
        assert all(np.array_equal(arrays[name], known[name]) for name in known)
    assert refused > 1000


def test_files_of_version_0_1_have_no_digest_and_are_read(tmp_path):
    from safetensors.numpy import save

    described = json.dumps({"kind": "kind", "format": 1, "note": "old"})
    (tmp_path / "old").write_bytes(save({"a": ARRAYS["a"]}, {"tood": described}))
    arrays, metadata = read_tensors(tmp_path / "old", "kind")
    assert metadata == {"note": "old"}
    np.testing.assert_array_equal(arrays["a"], ARRAYS["a"])
    (tmp_path / "new").write_bytes(save({"a": ARRAYS["a"]}, {"tood": described.replace("1", "2")}))
    with pytest.raises(ToodError, match="new: damaged: its content does not match its digest"):
        read_tensors(tmp_path / "new", "kind")


def test_a_flipped_bit_never_changes_the_scores_of_a_calibrator(tmp_path):
    rng = np.random.default_rng(0)
    logits, labels = rng.normal(size=(40, 4)), np.arange(40) % 4
    path = tmp_path / "calibrator.safetensors"
    TOOD([[0, 1], [2, 3]]).fit(logits, labels).save(path)
    expected = TOOD.load(path).score(logits)
    for changed in flips(path.read_bytes(), 300):
        path.write_bytes(changed)
        try:
            calibrator = TOOD.load(path)
        except ToodError:
            continue
        np.testing.assert_array_equal(calibrator.score(logits), expected)


def test_only_the_arrays_wanted_are_read(tmp_path):
    path = tmp_path / "f.npz"
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, array in (("logits", np.ones((2, 3))), ("bomb", np.zeros(1 << 26))):
            buffer = io.BytesIO()
            np.save(buffer, array)
            archive.writestr(f"{name}.npy", buffer.getvalue())
    arrays, _ = read_npz(path, ["logits", "labels"])
    assert list(arrays) == ["logits"]
    with pytest.raises(ToodError, match=r"bomb.npy: \d+ bytes unpack to 536871216"):
        read_npz(path)


def test_several_bombs_of_one_file_count_together(tmp_path):
    np.savez_compressed(tmp_path / "f.npz", **{name: np.zeros(300_000) for name in ("logits", "features")})
    with pytest.raises(ToodError, match=r"\d+ bytes unpack to 4800256"):
        read_npz(tmp_path / "f.npz")
    np.savez_compressed(tmp_path / "labels.npz", labels=np.arange(1_200_000) // 1200)  # sorted, as folders are read
    assert npz_member(tmp_path / "labels.npz", "labels")[-1] == 999


@pytest.mark.parametrize("shape", ["(2, 4)", "(-1, 6)", "(2, 2)", "(9999999999, 9999999999)"])
def test_a_shape_that_the_bytes_do_not_have_is_refused(tmp_path, shape):
    path = tmp_path / "f.npz"
    write_npz(path, {"logits": np.zeros((2, 3))})
    data = path.read_bytes()
    header = b"'shape': (2, 3), }"
    assert header in data
    forged = f"'shape': {shape}, }}".encode()
    padded = data.replace(header + b" " * (len(forged) - len(header)), forged) if len(forged) > len(header) else data
    padded = padded.replace(header, forged.ljust(len(header)))
    path.write_bytes(padded)
    with pytest.raises(ToodError, match=r"f\.npz: truncated, or not an \.npz file of plain arrays"):
        read_npz(path)


def test_a_folder_in_place_of_a_file_is_not_called_damaged(tmp_path):
    for read in (npz_names, read_npz):
        with pytest.raises(ToodError, match=r"cannot be read \(Is a directory\)"):
            read(tmp_path)


@pytest.mark.skipif(os.name != "posix", reason="pipes are POSIX")
def test_a_pipe_is_not_waited_for(tmp_path):
    os.mkfifo(tmp_path / "pipe")
    for read in (npz_names, read_npz, lambda path: read_tensors(path, "tood-learner")):
        with pytest.raises(ToodError, match="pipe: expected a regular file"):
            read(tmp_path / "pipe")


def test_the_digest_is_that_of_the_file(tmp_path):
    path = tmp_path / "f.npz"
    write_npz(path, {"logits": np.arange(1e5)})
    assert read_npz(path)[1] == hashlib.sha256(path.read_bytes()).hexdigest()


def test_leftovers_of_killed_writers_are_removed_after_an_hour(tmp_path):
    target = tmp_path / "out.txt"
    child = os.fork()
    if child == 0:
        write_atomically(target, lambda temporary: os._exit(9))
    os.waitpid(child, 0)
    (left,) = tmp_path.glob(".out.txt.*.tmp")
    other = tmp_path / "deep" / ".other.tmp"
    other.parent.mkdir()
    other.touch()
    files.remove_leftovers(tmp_path)  # its writer may be alive, on another machine
    assert left.exists() and not target.exists()
    for file in (left, other):
        os.utime(file, (0, 0))
    write_atomically(target, lambda temporary: temporary.write_text("done"))
    assert sorted(p.name for p in tmp_path.iterdir()) == ["deep", "out.txt"] and other.exists()


@pytest.mark.parametrize("text", ["../x", "/abs/x", "..", "a/b", "a\x00b", ".hidden", "-rf", "\x1b[2J", "a\nb"])
def test_file_names_are_never_paths(text, tmp_path):
    name = file_name(text)
    assert name == os.path.basename(name) and not name.startswith((".", "-")) and name.isprintable()
    (tmp_path / name).write_text("")
    assert [p.name for p in tmp_path.iterdir()] == [name]


@pytest.mark.skipif(os.name != "posix", reason="file modes are POSIX")
@pytest.mark.parametrize(("mask", "mode"), [(0o022, 0o644), (0o027, 0o640), (0o077, 0o600)])
def test_files_have_the_mode_that_the_user_asked_for(tmp_path, mask, mode):
    before = os.umask(mask)
    try:
        write_atomically(tmp_path / "f", lambda temporary: temporary.write_text("text"))
        assert os.umask(mask) == mask  # as it was
    finally:
        os.umask(before)
    assert (tmp_path / "f").stat().st_mode & 0o777 == mode


def test_a_zip_directory_that_hides_a_member_is_noticed(tmp_path):
    """The length of the first entry's comment, made so large that it swallows the second entry."""
    path = tmp_path / "f.npz"
    np.savez(path, logits=np.zeros(2), features=np.zeros(2))
    data = bytearray(path.read_bytes())
    first = data.index(b"PK\x01\x02")
    data[first + 32] = data.index(b"PK\x05\x06") - first - 46 - len("logits.npy")
    path.write_bytes(data)
    with zipfile.ZipFile(path) as archive:
        assert archive.namelist() == ["logits.npy"]
    for read in (npz_names, read_npz):
        with pytest.raises(ToodError, match=r"f\.npz: truncated.*the directory lists 1 of 2 members"):
            read(path)


def test_long_names_in_any_script_can_be_written(tmp_path):
    name = file_name("漢" * 120)
    (tmp_path / name).write_text("")
    assert len(name) == 40 and name == file_name(name)
    write_atomically(tmp_path / ("漢" * 80), lambda temporary: temporary.write_text("done"))
    assert (tmp_path / ("漢" * 80)).read_text() == "done"
