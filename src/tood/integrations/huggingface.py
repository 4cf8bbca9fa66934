"""Calibrators on the Hugging Face Hub: save, push and load, with a model card that states the limits.

A repository (or folder) holds ``calibrator.safetensors`` and a ``README.md``, the card. Nothing is pickled, and loading
runs no code from the repository.
"""

from __future__ import annotations

import os
import tempfile
from importlib.resources import files
from pathlib import Path
from string import Template
from typing import Any

import numpy as np

import tood
from tood.calibration import TOOD
from tood.errors import ToodError
from tood.integrations.adapter import peer
from tood.storage.files import write_text

__all__ = ["from_pretrained", "model_card", "push_to_hub", "save_pretrained"]

FILE = "calibrator.safetensors"
TAGS = ["out-of-distribution-detection", "continual-learning", "tood"]


def save_pretrained(cal: TOOD, folder: str | os.PathLike[str], repo_id: str = "OWNER/NAME", **card: Any) -> Path:
    """Write a fitted calibrator, with its model card, to a folder.

    Parameters
    ----------
    cal:
        A fitted :class:`~tood.TOOD`.
    folder:
        The folder; created if it is missing.
    repo_id:
        The name of the repository in the card's example.
    card:
        Further entries of the card's header, as ``huggingface_hub.ModelCardData`` takes them, such as
        ``license="mit"``, ``base_model="..."`` or ``tags=[...]``.

    Examples
    --------
    >>> import numpy as np, tempfile
    >>> rng = np.random.default_rng(0)
    >>> labels = rng.integers(4, size=200)
    >>> logits = 5 * np.eye(4)[labels] + rng.normal(size=(200, 4))
    >>> calibrator = TOOD([[0, 1], [2, 3]]).fit(logits, labels)
    >>> folder = save_pretrained(calibrator, tempfile.mkdtemp(), license="mit")
    >>> bool(np.array_equal(from_pretrained(folder).score(logits), calibrator.score(logits)))
    True
    """
    folder, text = Path(folder), model_card(cal, repo_id, **card)
    folder.mkdir(parents=True, exist_ok=True)
    cal.save(folder / FILE)
    write_text(folder / "README.md", text)
    return folder


def push_to_hub(
    cal: TOOD, repo_id: str, *, private: bool = True, branch: str | None = None, token: Any = None, **card: Any
) -> str:
    """Upload a calibrator with its card; return the address of the commit.

    Parameters
    ----------
    cal:
        As for :func:`save_pretrained`.
    repo_id:
        ``"owner/name"``; created if it does not exist.
    private:
        Whether a repository that is created is private.
    branch:
        The branch; by default the main one.
    token:
        Passed to ``huggingface_hub``, which otherwise uses the one that you have logged in with.
    card:
        As for :func:`save_pretrained`.
    """
    with peer("huggingface_hub", '"tood[hub]"', "push_to_hub"):
        from huggingface_hub import HfApi
    api = HfApi(token=token, library_name="tood", library_version=tood.__version__)
    with tempfile.TemporaryDirectory() as folder:
        save_pretrained(cal, folder, repo_id, **card)
        api.create_repo(repo_id, private=private, exist_ok=True)
        message = "Upload calibrator with tood"
        commit = api.upload_folder(repo_id=repo_id, folder_path=folder, revision=branch, commit_message=message)
    return str(getattr(commit, "commit_url", commit))


def from_pretrained(source: str | os.PathLike[str], **download: Any) -> TOOD:
    """Load a calibrator from a local folder or from the Hub.

    Parameters
    ----------
    source:
        A folder that :func:`save_pretrained` wrote, or ``"owner/name"`` on the Hub, which is downloaded.
    download:
        For the Hub, passed to ``huggingface_hub.snapshot_download``: ``revision``, ``token``, ``cache_dir``,
        ``local_files_only`` and the like.
    """
    folder = Path(source)
    if not folder.is_dir():
        if len(str(source).split("/")) != 2 or str(source).startswith((".", "/", "~")):
            raise ToodError(f"{source}: no such folder, and not 'owner/name' of a repository on the Hub")
        with peer("huggingface_hub", '"tood[hub]"', "from_pretrained"):
            from huggingface_hub import snapshot_download
        folder = Path(snapshot_download(str(source), allow_patterns=[FILE], **download))
    return TOOD.load(folder / FILE)


def model_card(cal: TOOD, repo_id: str = "OWNER/NAME", **card: Any) -> str:
    """The text of the model card, Markdown with a YAML header.

    Parameters
    ----------
    cal, repo_id, card:
        As for :func:`save_pretrained`.
    """
    with peer("huggingface_hub", '"tood[hub]"', "a model card"):
        from huggingface_hub import ModelCard, ModelCardData
    diagnostics = cal.diagnostics_
    tasks = []
    for columns, d in zip(cal.partition_, diagnostics, strict=True):
        known = "–" if np.isnan(d.auroc) else f"{d.auroc:.3f} ({d.low:.3f} to {d.high:.3f})"
        shown = ", ".join(map(str, columns))
        tasks.append(f"| {d.task} | {shown} | {d.samples} | {known} | {'yes' if d.alive else 'no'} |")
    template = Template((files("tood.integrations") / "calibrator_card.md").read_text(encoding="utf-8"))
    body = template.substitute(
        settings=", ".join(f"{name} `{value}`" for name, value in cal.get_params().items() if name != "tasks"),
        samples=sum(d.samples for d in diagnostics),
        least=min(d.samples for d in diagnostics),
        tasks="\n".join(tasks),
        dead=", ".join(str(d.task) for d in diagnostics if not d.alive) or "none",
        repo=repo_id,
        version=tood.__version__,
    )
    header = ModelCardData(library_name="tood", **{**card, "tags": [*TAGS, *card.get("tags", ())]})
    return str(ModelCard(f"---\n{header.to_yaml()}\n---\n\n{body}"))
