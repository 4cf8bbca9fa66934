from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from tood import streams
from tood.errors import ToodError, UnknownNameError
from tood.streams.catalog import CATALOG, data_root, locate

WNIDS = [f"n{i:08d}" for i in range(20)]


@pytest.fixture
def imagenet(tmp_path, images, write_folder):
    """ImageNet's layout with 20 classes of one image."""
    samples, _ = images
    for split in ("imagenet1k/train", "imagenet1k/val"):
        write_folder(tmp_path / split, samples, np.arange(20), classes=WNIDS)
    for name in ("ssb_hard", "ninco", "inaturalist", "textures", "openimage_o"):
        write_folder(tmp_path / name, samples[:3], np.zeros(3, int), classes=["images"])
    return tmp_path


def test_names_and_the_papers_tasks():
    tasks = {name: entry.tasks for name, entry in CATALOG.items()}
    assert set(streams.names()) == {"cifar10_components", "clinc150", "digits", *tasks}
    assert tasks == {
        "cifar10": 5,
        "cifar100": 10,
        "cifar100-5": 5,
        "cifar100-20": 20,
        "cifar100-50": 50,
        "tinyimagenet": 20,
        "tinyimagenet-100": 100,
        "imagenet1k": 100,
    }
    with pytest.raises(UnknownNameError, match="unknown stream 'cifar-10'; did you mean 'cifar10'"):
        streams.load("cifar-10")


def test_a_missing_set_says_which_where_and_how(tmp_path, images, write_pack):
    with pytest.raises(ToodError) as caught:
        streams.load("cifar10", root=tmp_path)
    message = str(caught.value)
    for part in ("cifar10-train", "svhn-test", str(tmp_path), "TOOD_DATA", "tood data check"):
        assert part in message
    assert "\n" not in message
    write_pack(tmp_path / "svhn-test.npz", *images, "images")
    assert locate(CATALOG["cifar10"], tmp_path)["svhn"] == tmp_path / "svhn-test.npz"
    with pytest.raises(ToodError, match="imagenet1k/train"):
        streams.load("imagenet1k", root=tmp_path)


def test_where_the_sets_are_looked_for(monkeypatch, tmp_path):
    monkeypatch.setenv("TOOD_DATA", str(tmp_path))
    assert data_root() == tmp_path
    assert data_root("elsewhere") == Path("elsewhere")
    monkeypatch.delenv("TOOD_DATA")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    assert data_root() == tmp_path / "cache" / "tood"
    monkeypatch.delenv("XDG_CACHE_HOME")
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    assert data_root() == tmp_path / "home" / ".cache" / "tood"


def test_imagenet_is_read_from_folders_when_needed(imagenet):
    stream = streams.load("imagenet1k", root=imagenet, tasks=2, order=7)
    assert (len(stream), stream.train.shape, stream.sizes) == (2, (224, 224, 3), (10, 10))
    assert stream.classes == tuple(WNIDS[c] for c in stream.order)
    assert [(s.name, s.group) for s in stream.ood] == [
        ("ssb_hard", "near"),
        ("ninco", "near"),
        ("inaturalist", "far"),
        ("textures", "far"),
        ("openimage_o", "far"),
    ]
    assert stream.train.take(stream.train_rows(1)).shape == (10, 224, 224, 3)
    assert stream.ood[4].source.take(np.array([2])).dtype == np.uint8
    small = streams.load("imagenet1k", root=imagenet, tasks=2, size=56)
    assert (small.train.shape, small.train.resize) == ((56, 56, 3), 64)
    with pytest.raises(ToodError, match="20 classes cannot be split into 100 equal tasks"):
        streams.load("imagenet1k", root=imagenet)


def test_openoods_folder_is_read_by_its_lists(tmp_path, images, write_folder):
    samples, labels = images
    lists = tmp_path / "benchmark_imglist" / "cifar10"
    lists.mkdir(parents=True)
    write_folder(tmp_path / "images_classic" / "cifar10", samples, labels)
    lines = [f"cifar10/{'abcd'[label]}/{i:03d}.png {label}" for i, label in enumerate(labels)]
    for name in ("train_cifar10", "test_cifar10"):
        (lists / f"{name}.txt").write_text("\n".join(lines))
    outside = [line.split()[0] + " -1" for line in lines[:5]]
    for name in ("cifar100", "tin", "mnist", "svhn", "texture"):
        (lists / f"test_{name}.txt").write_text("\n".join(outside))
    with pytest.warns(UserWarning, match="left out: places .* no places-test"):
        fewer = streams.load("cifar10", root=tmp_path, tasks=2, size=16, ood=["svhn"])
    assert [s.name for s in fewer.ood] == ["svhn"]
    with pytest.warns(UserWarning, match="has no places-test"), pytest.raises(UnknownNameError, match="places"):
        streams.load("cifar10", root=tmp_path, tasks=2, ood=["places"])
    (lists / "test_places365.txt").write_text(outside[0])
    stream = streams.load("cifar10", root=tmp_path, tasks=2, size=16)
    assert stream.classes == ("a", "b", "c", "d")
    assert [(s.name, s.group, len(s.source)) for s in stream.ood] == [
        ("cifar100", "near", 5),
        ("tinyimagenet", "near", 5),
        ("mnist", "far", 5),
        ("svhn", "far", 5),
        ("textures", "far", 5),
        ("places", "far", 1),
    ]
    np.testing.assert_array_equal(stream.train.take(stream.train_rows(1)), samples[labels >= 2])


@pytest.fixture
def cifar(tmp_path, images, write_pack):
    """CIFAR-10's layout with the OOD sets svhn and textures, 20 images each."""
    for name in ("cifar10-train", "cifar10-test", "svhn-test", "dtd-test"):
        write_pack(tmp_path / f"{name}.npz", *images, "images")
    return tmp_path


def test_packed_sets_are_resized_as_folders_are(cifar, images):
    options = {"stream": "cifar10", "root": str(cifar), "tasks": 2, "size": 16, "resize": 20}
    stream = streams.load(options, ood=["svhn"])
    large = Image.fromarray(images[0][3]).resize((20, 20), Image.Resampling.BILINEAR)
    for source in (stream.train, stream.ood[0].source):
        np.testing.assert_array_equal(source.take(np.array([3]))[0], np.asarray(large)[2:18, 2:18])


@pytest.mark.filterwarnings("ignore:cifar10. OOD sets left out")
def test_named_streams_take_further_ood_sets(cifar, images, tmp_path, write_folder, write_pack):
    write_folder(tmp_path / "cats", *images)
    write_pack(tmp_path / "dogs-test.npz", *images, "sheets")
    np.savez(tmp_path / "owls.npz", images=np.zeros((3, 32, 32, 3), np.uint8))
    places = {
        "near": {"cats": str(tmp_path / "cats")},
        "far": {"dogs": "dogs-test", "owls": str(tmp_path / "owls.npz")},
    }
    mapping = {"stream": "cifar10", "root": str(cifar), "tasks": 2, "ood": places}
    stream = streams.load(mapping)
    assert [(s.name, s.group, len(s.source)) for s in stream.ood] == [
        ("svhn", "far", 20),
        ("textures", "far", 20),
        ("cats", "near", 20),
        ("dogs", "far", 20),
        ("owls", "far", 3),
    ]
    assert [s.name for s in streams.load(mapping, ood=["dogs", "svhn"]).ood] == ["svhn", "dogs"]
    assert [s.name for s in streams.load(mapping, ood=["owls"]).ood] == ["owls"]
    with pytest.raises(UnknownNameError, match="unknown OOD set of cifar10 'owl'"):
        streams.load(mapping, ood=["owl"])
    with pytest.raises(ToodError, match=r"ood: expected \{near.* found \['svhn'\]"):
        streams.load({**mapping, "ood": ["svhn"]})
    with pytest.raises(ToodError, match="two OOD sets have the same name"):
        streams.load({**mapping, "ood": {"far": {"svhn": "dogs-test"}}})


def test_further_ood_sets_are_resized_as_the_stream(imagenet, images, write_folder):
    write_folder(imagenet / "cats", *images)
    places = {"far": {"cats": str(imagenet / "cats")}}
    stream = streams.load({"stream": "imagenet1k", "root": str(imagenet), "tasks": 2, "size": 56, "ood": places})
    source = stream.ood[-1].source
    assert (source.shape, source.resize) == ((56, 56, 3), 64)


def test_tiny_imagenets_own_classes_are_no_ood(tmp_path, images, write_pack):
    samples, labels = images
    own = ["n00000000 ant", "n00000001 bee", "n00000002 cat", "n00000003 dog"]
    for name in ("tinyimagenet-train", "tinyimagenet-test", "dtd64-test", "places64-test"):
        write_pack(tmp_path / f"{name}.npz", samples, labels, "sheets", own)
    other = ["n00000001_bee", "n00000007_eel", "n00000003_dog", "n00000009_fox"]
    write_pack(tmp_path / "imagenet64-sample.npz", samples, labels, "images", other)
    stream = streams.load("tinyimagenet", root=tmp_path, tasks=4, size=16)
    near = stream.ood[0]
    assert (near.name, near.group, len(near.source)) == ("imagenet800", "near", 10)
    np.testing.assert_array_equal(near.source.take(np.arange(10)), samples[np.isin(labels, [1, 3])])


@pytest.mark.data
def test_real_streams_have_the_papers_sets(packed_sets):
    cifar = streams.load("cifar10", root=packed_sets, reserve=20)
    assert (len(cifar), cifar.sizes, cifar.train.shape) == (5, (2,) * 5, (32, 32, 3))
    assert cifar.classes == (
        *("airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck"),
    )
    assert [len(cifar.train_rows(t)) for t in range(5)] == [2 * (5000 - 20)] * 5
    assert [len(cifar.test_rows(t)) for t in range(5)] == [2000] * 5
    near, far = ([s.name for s in cifar.ood if s.group == group] for group in ("near", "far"))
    assert (near, far) == (["cifar100", "tinyimagenet"], ["mnist", "svhn", "textures", "places"])
    assert {s.source.shape for s in cifar.ood} == {(32, 32, 3)}
    for tasks in (5, 10, 20):
        name = "cifar100" if tasks == 10 else f"cifar100-{tasks}"
        assert streams.load(name, root=packed_sets).sizes == (100 // tasks,) * tasks
    tiny = streams.load("tinyimagenet", root=packed_sets)
    assert (tiny.sizes, tiny.train.shape, len(tiny.ood[0].source)) == ((10,) * 20, (64, 64, 3), 800)


@pytest.mark.data
def test_real_pixels_have_the_statistics_they_are_normalised_with(packed_sets):
    cifar = streams.load("cifar10", root=packed_sets)
    test = cifar.test.take(np.arange(10_000)) / np.float32(255)
    np.testing.assert_allclose(test.mean((0, 1, 2)), cifar.mean, atol=0.005)
    np.testing.assert_allclose(test.std((0, 1, 2)), cifar.std, atol=0.005)
