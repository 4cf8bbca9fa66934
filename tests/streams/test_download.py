import sys
from types import SimpleNamespace

import numpy as np
import pytest
from PIL import Image

from tood.errors import MissingDependencyError, ToodError
from tood.streams import Stream, from_huggingface, load


@pytest.fixture(scope="module")
def datasets():
    return pytest.importorskip("datasets", reason="Hugging Face datasets is not installed (extra: huggingface)")


@pytest.fixture
def saved(tmp_path, images, datasets, monkeypatch):
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    samples, labels = images
    features = datasets.Features(
        {"image": datasets.Image(), "label": datasets.ClassLabel(names=["ant", "bee", "cat", "dog"])}
    )
    rows = {"image": [Image.fromarray(x) for x in samples], "label": labels.tolist()}
    train = datasets.Dataset.from_dict(rows, features=features)
    datasets.DatasetDict({"train": train, "test": train.select(range(8))}).save_to_disk(tmp_path / "hub")
    return tmp_path / "hub"


def test_a_dataset_on_disk_is_a_source(saved, images):
    samples, labels = images
    source = from_huggingface(saved, "train")
    assert (len(source), source.shape, source.classes) == (20, (16, 16, 3), ("ant", "bee", "cat", "dog"))
    np.testing.assert_array_equal(source.labels, labels)
    np.testing.assert_array_equal(source.take(np.array([4, 0, 19])), samples[[4, 0, 19]])
    assert source.take(np.array([], int)).shape == (0, 16, 16, 3)
    resized = from_huggingface(saved, "test", size=8).take(np.array([2]))[0]
    expected = np.asarray(Image.fromarray(samples[2]).resize((8, 8), Image.Resampling.BILINEAR))
    np.testing.assert_array_equal(resized, expected)


def test_it_makes_a_stream(saved):
    train, test = from_huggingface(saved, "train"), from_huggingface(saved, "test")
    stream = Stream.from_sources(train, test, tasks=2, classes=train.classes)
    assert stream.classes == ("ant", "bee", "cat", "dog")
    assert len(stream.train_rows(0)) == 10


def test_a_revision_is_asked_for_on_the_hub_and_not_in_a_folder(saved, datasets, monkeypatch):
    asked = []

    def load_dataset(name, **options):
        asked.append((name, options))
        return datasets.load_from_disk(saved)[options["split"]]

    monkeypatch.setattr(datasets, "load_dataset", load_dataset)
    ood = {"far": {"b": {"huggingface": "me/far", "revision": "v2"}}}
    stream = load({"huggingface": "me/data", "revision": "abc", "tasks": 2, "ood": ood})
    assert [s.name for s in stream.ood] == ["b"]
    assert asked == [
        ("me/data", {"split": "train", "revision": "abc"}),
        ("me/data", {"split": "test", "revision": "abc"}),
        ("me/far", {"split": "test", "revision": "v2"}),
    ]
    with pytest.raises(ToodError, match=r"revision: expected none for the folder .*, found 'abc'"):
        from_huggingface(saved, revision="abc")


def test_mistakes_are_named(saved, datasets):
    with pytest.raises(ToodError, match="no column 'img'; it has image, label"):
        from_huggingface(saved, "train", "img")
    with pytest.raises(ToodError, match="split: no 'val'; the dataset has train, test"):
        from_huggingface(saved, "val")
    with pytest.raises(ToodError, match="expected an image"):
        from_huggingface(saved, "train", "label")
    mixed = datasets.Dataset.from_dict(
        {"image": [Image.new("RGB", (s, s)) for s in (8, 9)]}, features=datasets.Features({"image": datasets.Image()})
    )
    with pytest.raises(ToodError, match="give a size"):
        from_huggingface(mixed, label_column=None).take(np.arange(2))
    assert from_huggingface(mixed, label_column=None, size=4).take(np.arange(2)).shape == (2, 4, 4, 3)
    (saved / "empty").mkdir()
    with pytest.raises(ToodError, match="cannot be loaded"):
        from_huggingface(saved / "empty")


def test_without_the_package_the_command_to_install_it_is_given(monkeypatch):
    monkeypatch.setitem(__import__("sys").modules, "datasets", None)
    with pytest.raises(MissingDependencyError, match=r'pip install "tood\[huggingface\]"'):
        from_huggingface("anything")


def test_texts_become_standardised_embeddings_that_are_encoded_once(tmp_path, datasets, monkeypatch):
    encoded = []

    class SentenceTransformer:
        def __init__(self, folder):
            assert folder == str(tmp_path / "encoder")

        def encode(self, texts):
            encoded.append(texts)
            return np.array([[len(text), text.count("a"), 1.0] for text in texts])

    monkeypatch.setitem(sys.modules, "sentence_transformers", SimpleNamespace(SentenceTransformer=SentenceTransformer))
    monkeypatch.setenv("TOOD_CACHE", str(tmp_path / "cache"))
    (tmp_path / "encoder").mkdir()
    (tmp_path / "encoder" / "weights").write_bytes(b"1")
    names = datasets.ClassLabel(names=["refund", "greet"])
    rows = {"query": ["pay me back", "cash", "hi", "hello there"], "intent": [0, 0, 1, 1]}
    split = datasets.Dataset.from_dict(
        rows, features=datasets.Features({"query": datasets.Value("string"), "intent": names})
    )
    datasets.DatasetDict({"train": split, "test": split}).save_to_disk(tmp_path / "hub")
    place = {"huggingface": str(tmp_path / "hub"), "text": "query", "encoder": str(tmp_path / "encoder")}
    described = {**place, "label": "intent", "tasks": 2, "ood": {"near": {"same": place}}}
    stream = load(described)
    assert stream.classes == ("refund", "greet") and stream.train.shape == (3,) and len(encoded) == 1
    task = stream.train.take(stream.train_rows(0))
    np.testing.assert_allclose(task[:, :2], [[1, 1], [-1, -1]], atol=1e-6)  # centred and scaled by the first task
    np.testing.assert_array_equal(stream.ood[0].source.take(np.arange(4)), stream.train.take(np.arange(4)))
    (tmp_path / "encoder" / "weights").write_bytes(b"2")
    load(described)
    assert len(encoded) == 2  # another encoder
