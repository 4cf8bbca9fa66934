"""Calibrators through a folder, as on the Hugging Face Hub."""

from __future__ import annotations

import shutil

import numpy as np
import pytest
import yaml

from tood import TOOD, ToodError
from tood.integrations import huggingface

HUB = "https://huggingface.co"
RNG = np.random.default_rng(0)
LABELS = RNG.integers(6, size=300)
LOGITS = 6 * np.eye(6)[LABELS] + RNG.normal(size=(300, 6))
LOGITS[:, :2] = RNG.normal(size=(300, 2))  # the channel of the first task is dead


@pytest.fixture
def calibrator():
    return TOOD([[0, 1], [2, 3, 4], [5]]).fit(LOGITS, LABELS)


def test_a_calibrator_comes_back_with_its_card(calibrator, tmp_path):
    folder = huggingface.save_pretrained(calibrator, tmp_path / "cal", license="mit")
    loaded = huggingface.from_pretrained(folder)
    assert np.array_equal(loaded.score(LOGITS), calibrator.score(LOGITS))
    assert (loaded.variant, loaded.margin, loaded.reference) == (calibrator.variant, calibrator.margin, "latest")
    _, header, body = (folder / "README.md").read_text().split("---\n", 2)
    assert yaml.safe_load(header)["license"] == "mit" and yaml.safe_load(header)["library_name"] == "tood"
    assert "Calibration set: 300 samples" in body and f"variant `{calibrator.variant}`" in body
    assert f"| 1 | 2, 3, 4 | {(np.isin(LABELS, [2, 3, 4])).sum()} |" in body
    assert "do not separate their own samples from the rest (not alive): 0.\n" in body


def test_the_cards_header_is_yaml_whatever_the_entries(calibrator):
    entries = {"language": "no", "title": 'a: "b" # c', "datasets": ["x", "y: z"]}
    _, header, _ = huggingface.model_card(calibrator, **entries, tags=["vision"]).split("---\n", 2)
    found = yaml.safe_load(header)
    assert {name: found[name] for name in entries} == entries  # YAML 1.1 reads a bare no as false
    assert "vision" in found["tags"] and "tood" in found["tags"] and header.count("tags:") == 1


@pytest.fixture
def remote(tmp_path, monkeypatch):
    """The Hub is a folder here; the calls are those of huggingface_hub."""
    hub = pytest.importorskip("huggingface_hub")
    folder = tmp_path / "remote"

    def upload(self, *, repo_id, folder_path, **options):
        shutil.copytree(folder_path, folder / repo_id, dirs_exist_ok=True)
        return f"https://huggingface.co/{repo_id}"

    monkeypatch.setattr(hub.HfApi, "create_repo", lambda self, repo_id, **options: hub.RepoUrl(f"{HUB}/{repo_id}"))
    monkeypatch.setattr(hub.HfApi, "upload_folder", upload)
    monkeypatch.setattr(hub, "snapshot_download", lambda repo_id, **options: str(folder / repo_id))
    return folder


def test_push_then_load_through_the_hubs_interface(calibrator, remote):
    assert huggingface.push_to_hub(calibrator, "me/cal", license="mit", branch="main") == f"{HUB}/me/cal"
    assert sorted(file.name for file in (remote / "me" / "cal").iterdir()) == ["README.md", "calibrator.safetensors"]
    card = (remote / "me" / "cal" / "README.md").read_text()
    assert 'from_pretrained("me/cal")' in card and "license: mit" in card
    loaded = huggingface.from_pretrained("me/cal", revision="main")
    assert np.array_equal(loaded.score(LOGITS), calibrator.score(LOGITS))


def test_clear_errors(tmp_path):
    with pytest.raises(ToodError, match=r"no such folder, and not 'owner/name'"):
        huggingface.from_pretrained("./missing/folder")
    with pytest.raises(ToodError, match="no such file"):
        huggingface.from_pretrained(tmp_path)
    with pytest.raises(ToodError, match="not fitted"):
        huggingface.save_pretrained(TOOD([[0], [1]]), tmp_path)
