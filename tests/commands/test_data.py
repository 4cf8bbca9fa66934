"""tood data check: what is there, what is damaged, what is missing for which table and where to get it."""

import hashlib
import json

import numpy as np
from tests import processes


def check(root, *arguments, code=0):
    result = processes.tood("data", "check", "--root", root, *arguments)
    assert result.returncode == code, result.stderr
    assert "Traceback" not in result.stderr
    return result.stdout if code == 0 else result.stderr


def test_present_intact_damaged_and_missing_sets(tmp_path):
    for name in ("cifar10-train", "cifar10-test"):
        np.savez(tmp_path / f"{name}.npz", images=np.zeros((2, 4, 4, 3), np.uint8), labels=[0, 1], classes=["a", "b"])
    (tmp_path / "dtd/dtd/images").mkdir(parents=True)
    digest = hashlib.sha256((tmp_path / "cifar10-test.npz").read_bytes()).hexdigest()
    (tmp_path / "SHA256SUMS").write_text(f"{digest}  cifar10-test.npz\n")
    found = json.loads(check(tmp_path, "--json"))
    states = {name: about["state"] for name, about in found["sets"].items()}
    assert [states[f"{name}-test"] for name in ("cifar10", "dtd", "svhn")] == ["intact", "present", "missing"]
    assert states["cifar10-train"] == "present" and found["sets"]["dtd-test"]["path"] == "dtd/dtd/images"
    svhn = found["sets"]["svhn-test"]
    assert svhn["source"] == "http://ufldl.stanford.edu/housenumbers/" and "test_32x32.mat" in svhn["places"]
    assert svhn["licence"] == "non-commercial use only" and svhn["size"] == "73,257 training and 26,032 test images"
    assert found["streams"]["cifar10"] == [
        f"{name}-test" for name in ("cifar100", "tinyimagenet", "mnist", "svhn", "places")
    ]
    assert "table1" in found["tables"]["cifar10"] and found["tables"]["imagenet1k"] == ["imagenet"]
    shown = check(tmp_path)
    assert "stream imagenet1k (imagenet): missing imagenet1k/train" in shown and "put it at svhn-test.npz or" in shown
    (tmp_path / "SHA256SUMS").write_text(f"{digest}  cifar10-train.npz\n{'0' * 64}  cifar10-test.npz\n")
    assert "damaged: cifar10-test; get the files again" in check(tmp_path, code=1)


def test_a_folder_that_is_not_there_is_said_and_not_made(tmp_path):
    assert "nowhere: no such folder; set TOOD_DATA or give --root" in check(tmp_path / "nowhere")
    assert not (tmp_path / "nowhere").exists()
