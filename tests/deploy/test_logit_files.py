import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tood import ToodError
from tood.deploy import logit_files as rows_module
from tood.deploy.logit_files import LogitsFile

ROWS, COLUMNS = 1000, 7


def write(path, logits):
    """The same logits in the layout that the name asks for."""
    kind = path.name.split("-")[0]
    if path.suffix == ".npy":
        np.save(path, logits)
    elif path.suffix == ".npz":
        (np.savez_compressed if kind == "compressed" else np.savez)(path, labels=np.zeros(3), logits=logits)
    else:
        flat = pa.array(logits.reshape(-1))
        if kind == "fixed":
            table = pa.table({"id": np.arange(len(logits)), "logits": pa.FixedSizeListArray.from_arrays(flat, COLUMNS)})
        elif kind == "lists":
            table = pa.table({"logits": pa.array(list(logits))})
        else:
            table = pa.table({"id": np.arange(len(logits)), **{f"logit_{c}": logits[:, c] for c in range(COLUMNS)}})
            table = table.select(table.column_names[::-1])
        pq.write_table(table, path, row_group_size=300)
    return path


LAYOUTS = ["a-.npy", "plain-.npz", "compressed-.npz", "fixed-.parquet", "lists-.parquet", "columns-.parquet"]


@pytest.mark.parametrize("name", LAYOUTS)
@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.float64, np.int32])
def test_every_layout_gives_the_rows(tmp_path, monkeypatch, name, dtype):
    monkeypatch.setattr(rows_module, "BLOCK_BYTES", 1000)
    logits = (100 * np.random.default_rng(0).normal(size=(ROWS, COLUMNS))).astype(dtype)
    file = LogitsFile(write(tmp_path / name, logits))
    assert file.rows == ROWS
    for start in (0, 1, 299, 300, 777, ROWS - 1, ROWS):
        blocks = [block.copy() for block in file.blocks(start)]
        found = np.concatenate([np.empty((0, COLUMNS), dtype=dtype), *blocks])
        np.testing.assert_array_equal(found, logits[start:])
        assert found.dtype == dtype


@pytest.mark.parametrize("name", LAYOUTS)
def test_an_empty_file_has_no_rows(tmp_path, name):
    file = LogitsFile(write(tmp_path / name, np.empty((0, COLUMNS), dtype=np.float32)))
    assert file.rows == 0 and not list(file.blocks())


@pytest.mark.parametrize("name", LAYOUTS)
def test_a_truncated_file_is_named(tmp_path, name):
    path = write(tmp_path / name, np.random.default_rng(0).normal(size=(ROWS, COLUMNS)))
    path.write_bytes(path.read_bytes()[:-2000])
    with pytest.raises(ToodError, match=name):
        list(LogitsFile(path).blocks())


def test_what_is_not_logits_is_said(tmp_path):
    cases = {
        "absent.npy": (None, "no such file"),
        "logits.csv": (b"1,2", "unknown file type '.csv'"),
        "text.npy": (b"hello", "not a .npy file"),
    }
    for name, (content, match) in cases.items():
        if content is not None:
            (tmp_path / name).write_bytes(content)
        with pytest.raises(ToodError, match=match):
            LogitsFile(tmp_path / name)
    np.save(tmp_path / "flat.npy", np.zeros(5))
    np.save(tmp_path / "turned.npy", np.zeros((4, 5)).T)
    np.save(tmp_path / "words.npy", np.array([["a", "b"]]))
    for name, remedy in (("flat", ""), ("turned", "; save np.ascontiguousarray of it"), ("words", "")):
        with pytest.raises(ToodError, match=f"{name}.npy: expected numbers.*{remedy}$"):
            LogitsFile(tmp_path / f"{name}.npy")
    np.savez(tmp_path / "other.npz", scores=np.zeros(3))
    with pytest.raises(ToodError, match="expected an array 'logits', found scores"):
        LogitsFile(tmp_path / "other.npz")
    tables = {
        "names": (pa.table({"x": [1.0]}), "expected a column 'logits' of lists"),
        "gap": (pa.table({"logit_0": [1.0], "logit_2": [1.0]}), "without a gap"),
        "ragged": (pa.table({"logits": [[1.0, 2.0], [1.0]]}), "lists of one length"),
        "null": (pa.table({"logits": [[1.0, 2.0], None]}), "lists of one length"),
        "hole": (pa.table({"logit_0": [1.0, None]}), "found a null"),
    }
    for name, (table, match) in tables.items():
        pq.write_table(table, tmp_path / f"{name}.parquet")
        with pytest.raises(ToodError, match=match):
            list(LogitsFile(tmp_path / f"{name}.parquet").blocks())
