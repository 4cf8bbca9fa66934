from decimal import Decimal

import numpy as np
import pyarrow as pa
import pyarrow.csv
import pyarrow.feather
import pyarrow.parquet as pq
import pytest

from tood import ToodError
from tood.deploy import logit_files as rows_module
from tood.deploy import table_files
from tood.deploy.logit_files import LogitsFile, read_labelled

ROWS, COLUMNS = 1000, 7


def write(path, logits):
    """The same logits in the layout that the name asks for."""
    kind = path.name.split("-")[0]
    if path.suffix == ".npy":
        np.save(path, logits)
    elif path.suffix == ".npz":
        (np.savez_compressed if kind == "compressed" else np.savez)(path, labels=np.zeros(3), logits=logits)
    elif kind == "bare":
        np.savetxt(path, logits, delimiter=",")
    elif kind == "pandas":
        np.savetxt(path, logits, delimiter=",", header=",".join(map(str, range(COLUMNS))), comments="")
    else:
        flat = pa.array(logits.reshape(-1))
        if kind == "fixed":
            table = pa.table({"id": np.arange(len(logits)), "logits": pa.FixedSizeListArray.from_arrays(flat, COLUMNS)})
        elif kind == "lists":
            table = pa.table({"logits": pa.array(list(logits), pa.list_(pa.from_numpy_dtype(logits.dtype)))})
        else:
            table = pa.table({"id": np.arange(len(logits)), **{f"logit_{c}": logits[:, c] for c in range(COLUMNS)}})
            table = table.select(table.column_names[::-1])
        if path.suffix == ".parquet":
            pq.write_table(table, path, row_group_size=300)
        elif path.suffix == ".csv":
            pyarrow.csv.write_csv(table, path)
        elif kind == "stream":
            with pa.ipc.new_stream(path, table.schema) as writer:
                writer.write_table(table, max_chunksize=300)
        else:
            pyarrow.feather.write_feather(table, path, chunksize=300)
    return path


BINARY = [
    *("a-.npy", "plain-.npz", "compressed-.npz", "fixed-.parquet", "lists-.parquet", "columns-.parquet"),
    *("lists-.arrow", "columns-.feather", "stream-.arrow"),
]
TEXT = ["columns-.csv", "bare-.csv", "pandas-.csv"]


@pytest.mark.parametrize("name", [*BINARY, *TEXT])
@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.float64, np.int32])
def test_every_format_gives_the_rows(tmp_path, monkeypatch, name, dtype):
    if name in TEXT and dtype == np.float16:
        pytest.skip("Arrow writes no half precision to CSV")
    monkeypatch.setattr(rows_module, "BLOCK_BYTES", 1000)
    logits = (100 * np.random.default_rng(0).normal(size=(ROWS, COLUMNS))).astype(dtype)
    file = LogitsFile(write(tmp_path / name, logits))
    found = np.concatenate([block.logits for block in file.blocks()])
    if name in TEXT:
        assert file.rows is None and found.dtype == np.float64
        np.testing.assert_allclose(found, logits, rtol=1e-6)
    else:
        assert file.rows == (ROWS if file.suffix in (".npy", ".npz", ".parquet") else None) and found.dtype == dtype
        np.testing.assert_array_equal(found, logits)


@pytest.mark.parametrize("name", BINARY)
def test_an_empty_file_has_no_rows(tmp_path, name):
    file = LogitsFile(write(tmp_path / name, np.empty((0, COLUMNS), dtype=np.float32)))
    assert not file.rows and sum(len(block.logits) for block in file.blocks()) == 0


@pytest.mark.parametrize("name", BINARY)
def test_a_truncated_file_is_named(tmp_path, name):
    path = write(tmp_path / name, np.random.default_rng(0).normal(size=(ROWS, COLUMNS)))
    path.write_bytes(path.read_bytes()[:-2000])
    with pytest.raises(ToodError, match=name):
        list(LogitsFile(path).blocks())


@pytest.mark.parametrize("name", ["a.npy", "a.npz"])
def test_a_flipped_bit_in_a_header_hides_no_rows(tmp_path, name):
    logits = np.zeros((60000, 6), np.float32)
    (np.save if name == "a.npy" else np.savez)(tmp_path / name, logits)
    data = (tmp_path / name).read_bytes()
    assert data.count(b"(60000, 6)") == 1
    (tmp_path / name).write_bytes(data.replace(b"(60000, 6)", b"(20000, 6)"))
    with pytest.raises(ToodError, match=name):
        list(LogitsFile(tmp_path / name).blocks())


def test_kept_columns_come_with_their_rows(tmp_path):
    logits = np.random.default_rng(0).normal(size=(ROWS, COLUMNS))
    names = [f"{row:05d}" for row in range(ROWS)]
    columns = {"name": names, **{f"logit_{c}": logits[:, c] for c in range(COLUMNS)}}
    pq.write_table(pa.table(columns), tmp_path / "a.parquet", row_group_size=300)
    pyarrow.csv.write_csv(pa.table(columns), tmp_path / "a.csv")
    np.savez(tmp_path / "a.npz", logits=logits, name=names)
    for suffix in ("parquet", "csv", "npz"):
        blocks = list(LogitsFile(tmp_path / f"a.{suffix}", keep=["name"]).blocks())
        assert [name for block in blocks for name in block.columns["name"].tolist()] == names
        with pytest.raises(ToodError, match=f"a.{suffix}: expected a column 'id', found .*name"):
            LogitsFile(tmp_path / f"a.{suffix}", keep=["id"])
    np.savez(tmp_path / "b.npz", logits=logits, name=names[1:])
    with pytest.raises(ToodError, match=rf"b.npz: name: expected {ROWS} entries"):
        list(LogitsFile(tmp_path / "b.npz", keep=["name"]).blocks())


def test_labels_come_from_a_column_or_another_file(tmp_path):
    logits, labels = np.random.default_rng(0).normal(size=(50, 3)), np.arange(50) % 3
    np.save(tmp_path / "logits.npy", logits)
    np.savez(tmp_path / "both.npz", logits=logits, labels=labels.astype(float))
    columns = {f"logit_{c}": logits[:, c] for c in range(3)}
    pyarrow.csv.write_csv(pa.table({**columns, "label": labels}), tmp_path / "both.csv")
    pq.write_table(pa.table({**columns, "labels": labels.astype(float)}), tmp_path / "both.parquet")
    np.save(tmp_path / "labels.npy", labels)
    np.savez(tmp_path / "labels.npz", labels=labels, ids=labels)
    np.savetxt(tmp_path / "labels.csv", labels, fmt="%d")
    np.savetxt(tmp_path / "headed.csv", labels, fmt="%d", header="target", comments="")
    pyarrow.feather.write_feather(pa.table({"label": labels, "id": labels}), tmp_path / "labels.arrow")
    given = [("both.npz", None), ("both.csv", None), ("both.parquet", None)]
    given += [("logits.npy", name) for name in ("labels.npy", "labels.npz", "labels.csv", "headed.csv", "labels.arrow")]
    for path, other in given:
        found, columns = read_labelled(tmp_path / path, other and tmp_path / other)
        np.testing.assert_allclose(found, logits, rtol=1e-12)
        np.testing.assert_array_equal(columns, labels)
    with pytest.raises(ToodError, match=r"logits.npy: expected labels beside the logits"):
        read_labelled(tmp_path / "logits.npy")
    np.save(tmp_path / "half.npy", labels + 0.5)
    with pytest.raises(ToodError, match=r"half.npy: labels: expected one axis of whole numbers"):
        read_labelled(tmp_path / "logits.npy", tmp_path / "half.npy")
    np.save(tmp_path / "few.npy", labels[:9])
    with pytest.raises(ToodError, match=r"few.npy: labels: expected 50 entries"):
        read_labelled(tmp_path / "logits.npy", tmp_path / "few.npy")


def test_missing_numbers_are_nan(tmp_path):
    nan = np.nan
    (tmp_path / "a.csv").write_text("logit_0,logit_1\n1,2\n,4\n")
    pq.write_table(pa.table({"logits": [[1.0, 2.0], [None, 4.0]]}), tmp_path / "a.parquet")
    pq.write_table(pa.table({"logits": [[1.0, 2.0], None]}), tmp_path / "b.parquet")
    for name, second in (("a.csv", [nan, 4]), ("a.parquet", [nan, 4]), ("b.parquet", [nan, nan])):
        [block] = LogitsFile(tmp_path / name).blocks()
        np.testing.assert_array_equal(block.logits, [[1, 2], second])


@pytest.mark.parametrize("kind", [pa.list_(pa.float32()), pa.list_(pa.float32(), 2), pa.list_(pa.int64())])
@pytest.mark.parametrize("nulls_first", [False, True])
def test_a_batch_of_nulls_is_rows_of_nan(tmp_path, monkeypatch, kind, nulls_first):
    monkeypatch.setattr(table_files, "BATCH_ROWS", 2)
    rows = [[1, 2], None, None, None, None, None, [3, None], [4, 5]][2 * nulls_first :]
    pq.write_table(pa.table({"logits": pa.array(rows, kind)}), tmp_path / "a.parquet")
    blocks = list(LogitsFile(tmp_path / "a.parquet").blocks())
    assert [len(block.logits) for block in blocks] == [2] * (len(rows) // 2)
    expected = [[np.nan if value is None else value for value in row or (None, None)] for row in rows]
    np.testing.assert_array_equal(np.concatenate([block.logits for block in blocks]), expected)


def test_what_is_not_logits_is_said(tmp_path):
    cases = {
        "absent.npy": (None, "no such file"),
        "logits.txt": (b"1,2", r"logits\.txt: unknown file type '\.txt'"),
        "logits": (None, "no such file"),
        "empty.csv": (b"", "expected rows of numbers, found an empty file"),
        "semicolons.csv": (b"logit_0;logit_1\n1;2\n", "expected columns separated by commas, found 'logit_0;logit_1'"),
        "text.npy": (b"hello", "not a .npy file"),
    }
    for name, (content, match) in cases.items():
        if content is not None:
            (tmp_path / name).write_bytes(content)
        with pytest.raises(ToodError, match=match):
            list(LogitsFile(tmp_path / name).blocks())
    (tmp_path / "words.csv").write_text("logit_0,logit_1\n1,2\n3,four\n")
    with pytest.raises(ToodError, match=r"words.csv: .*four"):
        list(LogitsFile(tmp_path / "words.csv").blocks())
    np.save(tmp_path / "flat.npy", np.zeros(5))
    np.save(tmp_path / "words.npy", np.array([["a", "b"]]))
    for name in ("flat", "words"):
        with pytest.raises(ToodError, match=f"{name}.npy: expected numbers"):
            list(LogitsFile(tmp_path / f"{name}.npy").blocks())
    turned = np.arange(20.0).reshape(4, 5).T
    np.save(tmp_path / "turned.npy", turned)
    np.testing.assert_array_equal(next(LogitsFile(tmp_path / "turned.npy").blocks()).logits, turned)
    np.savez(tmp_path / "other.npz", scores=np.zeros(3), ids=np.zeros(3))
    with pytest.raises(ToodError, match="expected an array 'logits', found scores, ids"):
        list(LogitsFile(tmp_path / "other.npz").blocks())
    tables = {
        "names": (pa.table({"x": [1.0]}), "expected a column 'logits' of lists"),
        "gap": (pa.table({"logit_0": [1.0], "logit_2": [1.0]}), "without a gap"),
        "ragged": (pa.table({"logits": [[1.0, 2.0], [1.0]]}), "lists of one length.*row 1"),
        "nulls": (pa.table({"logits": pa.array([None], pa.list_(pa.float64()))}), "found only nulls"),
        "decimals": (pa.table({"logit_0": [Decimal("1.5")], "logit_1": [Decimal("2.5")]}), "numbers.*found decimal128"),
        "words": (pa.table({"logit_0": [1.5], "logit_1": ["2.5"]}), "expected numbers as logits, found string"),
        "lists": (pa.table({"logits": [["1.5", "2.5"]]}), "expected numbers as logits, found string"),
        "bools": (pa.table({"logits": [[True, False], None]}), "expected numbers as logits, found bool"),
    }
    for name, (table, match) in tables.items():
        pq.write_table(table, tmp_path / f"{name}.parquet")
        with pytest.raises(ToodError, match=match):
            list(LogitsFile(tmp_path / f"{name}.parquet").blocks())


def test_a_bare_number_beside_named_logits_is_another_column(tmp_path):
    (tmp_path / "a.csv").write_text("logit_1,logit_0,0\n2,1,99\n")
    np.testing.assert_array_equal(LogitsFile(tmp_path / "a.csv").read(), [[1, 2]])
    (tmp_path / "b.csv").write_text("logit_0,logit_1,logit_01\n1,2,3\n")
    with pytest.raises(ToodError, match="two columns of logits have the same number"):
        LogitsFile(tmp_path / "b.csv").read()


def test_a_label_that_is_not_a_number_is_shown(tmp_path):
    names = ["cat", "dog", "fox"] * 3
    np.save(tmp_path / "logits.npy", np.zeros((9, 3)))
    np.save(tmp_path / "text.npy", names)
    np.save(tmp_path / "objects.npy", np.array(names, dtype=object))
    np.savez(tmp_path / "text.npz", labels=names)
    np.savez(tmp_path / "objects.npz", labels=np.array(names, dtype=object))
    (tmp_path / "headed.csv").write_text("id,label\n" + "".join(f"7,{name}\n" for name in names))
    (tmp_path / "bare.csv").write_text("\n".join(["cat", *names]))
    (tmp_path / "gap.csv").write_text("id,label\n1,0\n2,\n3,2\n")
    pq.write_table(pa.table({"label": names}), tmp_path / "text.parquet")
    pq.write_table(pa.table({"label": pa.array(names).dictionary_encode()}), tmp_path / "coded.parquet")
    pq.write_table(pa.table({"label": [0, None, 2]}), tmp_path / "gap.parquet")
    cat = "labels: expected logit columns 0 to 2 (could not convert string to float: "
    cases = {
        **dict.fromkeys(("text.npy", "text.npz", "headed.csv", "bare.csv", "text.parquet", "coded.parquet"), cat),
        "objects.npy": "truncated, or not a .npy file of numbers (Object arrays cannot be loaded",
        "objects.npz": "truncated, or not an .npz file of plain arrays (labels.npy: expected numbers, found Python",
        **dict.fromkeys(("gap.csv", "gap.parquet"), "labels: "),
    }
    for name, message in cases.items():
        with pytest.raises(ToodError) as caught:
            read_labelled(tmp_path / "logits.npy", tmp_path / name)
        assert str(caught.value).startswith(f"{tmp_path / name}: {message}")
    pq.write_table(pa.table({"label": list("012") * 3}), tmp_path / "digits.parquet")  # numbers as text, as in a CSV
    assert read_labelled(tmp_path / "logits.npy", tmp_path / "digits.parquet")[1].tolist() == [0, 1, 2] * 3


@pytest.mark.parametrize("kind", ["parquet", "file", "stream", "list"])
def test_a_small_table_does_not_become_a_large_array(tmp_path, kind):
    np.save(tmp_path / "logits.npy", np.eye(3))
    zeros = np.zeros(11_000_000)
    path, labels = tmp_path / f"{kind}.arrow", pa.table({"labels": [zeros] if kind == "list" else zeros})
    if kind == "parquet":
        path = path.with_suffix(".parquet")
        pq.write_table(labels, path)
    else:
        new = pa.ipc.new_file if kind == "file" else pa.ipc.new_stream
        with new(path, labels.schema, options=pa.ipc.IpcWriteOptions(compression="zstd")) as writer:
            writer.write_table(labels)
    assert path.stat().st_size < 100_000
    with pytest.raises(ToodError, match=r"bytes claim to hold 1100000\d values"):
        read_labelled(tmp_path / "logits.npy", path)
