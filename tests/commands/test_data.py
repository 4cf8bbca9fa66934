import json

import numpy as np
import pytest
from PIL import Image
from tests import processes

from tood.streams import PackedSource

IMAGES = np.random.default_rng(0).integers(0, 256, (12, 8, 8, 3)).astype(np.uint8)


def tood(*arguments, root, code=0):
    result = processes.tood("data", *arguments, "--root", root)
    assert result.returncode == code, result.stderr
    assert "Traceback" not in result.stderr
    return result.stdout if code == 0 or result.stdout else result.stderr


@pytest.fixture
def folder(tmp_path):
    for i, image in enumerate(IMAGES):
        path = tmp_path / "images" / "ab"[i % 2] / f"{i:02d}.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(image).save(path)
    return tmp_path / "images"


def test_prepare_verify_and_list_belong_together(tmp_path, folder):
    root = tmp_path / "sets"
    assert "12 images, 2 classes" in tood("prepare", "svhn", "test", "--from", folder, "--size", 8, root=root)
    expected = np.concatenate([IMAGES[::2], IMAGES[1::2]])
    np.testing.assert_array_equal(PackedSource(root / "svhn-test.npz").images, expected)
    assert "exists; --force replaces it" in tood(
        "prepare", "svhn", "test", "--from", folder, "--size", 8, root=root, code=1
    )

    found = json.loads(tood("list", "--json", root=root))
    assert found["sets"] == [
        {
            "file": "svhn-test.npz",
            "images": 12,
            "classes": 2,
            "shape": [8, 8, 3],
            "layout": "sheets",
            "bytes": (root / "svhn-test.npz").stat().st_size,
            "source": "http://ufldl.stanford.edu/housenumbers/",
            "licence": "non-commercial use only",
        }
    ]
    assert found["streams"]["digits"] == []
    assert "cifar10-train.npz" in found["streams"]["cifar10"]
    assert "svhn-test.npz" not in found["streams"]["cifar10"]
    absent = {entry["file"]: entry for entry in found["missing"]}
    assert "www.cs.toronto.edu/~kriz/cifar" in absent["cifar10-train.npz"]["source"]
    assert absent["cifar10-train.npz"]["size"] == "50,000 training and 10,000 test images"
    assert "svhn-test.npz" not in absent

    assert tood("verify", root=root) == "svhn-test.npz: intact\n"
    with (root / "svhn-test.npz").open("ab") as file:
        file.write(b"!")
    states = json.loads(tood("verify", "--json", root=root, code=1))
    assert states["sets"] == {"svhn-test.npz": "damaged"}
    (root / "svhn-test.npz").unlink()
    assert tood("verify", root=root, code=1) == "svhn-test.npz: missing\n"


def test_prepare_knows_cifars_binary_files(tmp_path):
    images = np.random.default_rng(0).integers(0, 256, (5, 32, 32, 3)).astype(np.uint8)
    records = [bytes([i % 2]) + image.transpose(2, 0, 1).tobytes() for i, image in enumerate(images)]
    (tmp_path / "test_batch.bin").write_bytes(b"".join(records))
    (tmp_path / "batches.meta.txt").write_text("airplane\nautomobile\n")
    tood("prepare", "cifar10", "test", "--from", tmp_path, root=tmp_path)
    source = PackedSource(tmp_path / "cifar10-test.npz")
    assert (source.classes, source.labels.tolist()) == (("airplane", "automobile"), [0, 1, 0, 1, 0])
    np.testing.assert_array_equal(source.images, images)


def test_prepare_refuses_labels_without_a_name(tmp_path):
    (tmp_path / "test_batch.bin").write_bytes(bytes([2]) + bytes(3072))
    (tmp_path / "batches.meta.txt").write_text("airplane\nautomobile\n")
    text = tood("prepare", "cifar10", "test", "--from", tmp_path, root=tmp_path, code=1)
    assert "expected a name for each label up to 2" in text
    assert not (tmp_path / "cifar10-test.npz").exists()


def test_list_has_the_sets_that_are_image_folders_or_lists(tmp_path):
    (tmp_path / "imagenet1k" / "train").mkdir(parents=True)
    found = json.loads(tood("list", "--json", root=tmp_path))
    assert [(entry["file"], entry["layout"]) for entry in found["folders"]] == [("imagenet1k/train", "folder")]
    assert "imagenet1k/val" in {entry["file"] for entry in found["missing"]}
    shown = tood("list", root=tmp_path)
    assert ": 1 sets\n  imagenet1k/train        image folder  https://www.image-net.org  (ImageNet terms" in shown
    lists = tmp_path / "benchmark_imglist" / "cifar10"
    lists.mkdir(parents=True)
    (lists / "test_svhn.txt").touch()
    found = json.loads(tood("list", "--json", root=tmp_path))
    (entry,) = found["folders"]
    assert (entry["layout"], entry["licence"]) == ("list", "non-commercial use only")
    absent = {entry["file"]: entry["size"] for entry in found["missing"]}
    assert absent["benchmark_imglist/cifar10/test_texture.txt"] == "5,640 images"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("prepare", "../x", "test", "--from", ".", "--size", 8), "expected letters, digits and underscores"),
        (("prepare", "x", "test", "--from", "."), "--size: expected the pixels per side"),
        (("prepare", "x", "test", "--from", "nowhere", "--size", 8), "nowhere: no such folder"),
        (("prepare", "x", "test", "--from", ".", "--kind", "cifar"), "expected test_batch.bin or test.bin"),
        (("verify",), "nowhere: no such folder; set TOOD_DATA or give --root"),
    ],
)
def test_mistakes_are_one_line(tmp_path, arguments, message):
    text = tood(*arguments, root=tmp_path / "nowhere", code=1)
    assert message in text
    assert text.count("\n") == 1
    assert not (tmp_path / "nowhere").exists()
