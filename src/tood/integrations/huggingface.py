"""Calibrators and networks on the Hugging Face Hub: save, push and load, with a model card that states the limits.

A repository (or folder) holds ``calibrator.safetensors``, ``network.safetensors`` or both, and a ``README.md``. Nothing
is pickled, and loading runs no code from the repository.
"""

from __future__ import annotations

import json
import os
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

import numpy as np

import tood
from tood.calibration import TOOD
from tood.errors import ToodError
from tood.files import write_text
from tood.integrations.adapter import peer

if TYPE_CHECKING:
    from tood.models import Network

__all__ = ["from_pretrained", "model_card", "push_to_hub", "save_pretrained"]

Item: TypeAlias = "TOOD | Network"
Entry: TypeAlias = "str | list[str]"
Kind: TypeAlias = Literal["calibrator", "network"]
FILES: dict[Kind, str] = {"calibrator": "calibrator.safetensors", "network": "network.safetensors"}
CLASSES: dict[Kind, str] = {"calibrator": "TOOD", "network": "Network"}
IMPORTS: dict[Kind, str] = {"calibrator": "from tood import TOOD", "network": "from tood.models import Network"}
PLACEHOLDER = "OWNER/NAME"
TAGS = ["out-of-distribution-detection", "continual-learning", "tood"]


def save_pretrained(item: Item, folder: str | os.PathLike[str], **card: Entry) -> Path:
    """Write a fitted calibrator or a network, with its model card, to a folder.

    Parameters
    ----------
    item:
        A fitted :class:`~tood.TOOD` or a :class:`tood.models.Network`.
    folder:
        The folder; created if it is missing. It may hold a calibrator and a network; the card then mentions both.
    card:
        Further entries of the card's header, each a text or a list of texts, such as ``license="mit"``,
        ``base_model="..."`` or ``tags=[...]``.

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
    folder = Path(folder)
    return _save(item, folder, PLACEHOLDER, (folder / FILES[_other(item)]).exists(), card)


def _save(item: Item, folder: Path, repo_id: str, beside: bool, card: dict[str, Entry]) -> Path:
    """Write an item and its card; ``beside``: the other kind is in the same place."""
    text = _card(item, repo_id, beside, card)
    folder.mkdir(parents=True, exist_ok=True)
    item.save(folder / FILES[kind_of(type(item))])
    write_text(folder / "README.md", text)
    return folder


def push_to_hub(
    item: Item,
    repo_id: str,
    *,
    commit_message: str | None = None,
    private: bool = True,
    branch: str | None = None,
    token: Any = None,
    **card: Entry,
) -> str:
    """Upload a calibrator or a network with its card; return the address of the commit.

    Parameters
    ----------
    item:
        As for :func:`save_pretrained`.
    repo_id:
        ``"owner/name"``; created if it does not exist. It may hold a calibrator and a network.
    commit_message:
        By default ``"Upload calibrator with tood"`` or ``"Upload network with tood"``.
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
        model_card(item, **card)  # raises before anything is created
        created = api.create_repo(repo_id, private=private, exist_ok=True)
        full_name = str(getattr(created, "repo_id", repo_id))
        beside = api.file_exists(full_name, FILES[_other(item)], revision=branch)
        _save(item, Path(folder), full_name, beside, card)
        commit = api.upload_folder(
            repo_id=repo_id,
            folder_path=folder,
            revision=branch,
            commit_message=commit_message or f"Upload {kind_of(type(item))} with tood",
        )
    return str(getattr(commit, "commit_url", commit))


def from_pretrained(
    source: str | os.PathLike[str], *, kind: Kind | None = None, backbone: Any = None, **download: Any
) -> Item:
    """Load a calibrator or a network from a local folder or from the Hub.

    Parameters
    ----------
    source:
        A folder that :func:`save_pretrained` wrote, or ``"owner/name"`` on the Hub, which is downloaded.
    kind:
        ``"calibrator"`` or ``"network"``; needed only if ``source`` has both.
    backbone:
        For a network of your own design: the module that its weights go into, of the same design; for one that
        ``Network.wrap(model)`` made, ``Network.wrap(model).backbone``.
    download:
        For the Hub, passed to ``huggingface_hub.snapshot_download``: ``revision``, ``token``, ``cache_dir``,
        ``local_files_only`` and the like.
    """
    if kind not in (None, *FILES):
        raise ToodError(f"kind: expected {' or '.join(FILES)}, found {kind!r}")
    folder = Path(source)
    if not folder.is_dir():
        folder = _downloaded(str(source), [FILES[kind]] if kind else list(FILES.values()), download)
    found = [name for name, file in FILES.items() if (folder / file).exists()]
    if not found:
        raise ToodError(f"{source}: expected {FILES[kind] if kind else ' or '.join(FILES.values())}, found none")
    if kind is None and len(found) > 1:
        raise ToodError(f"{source}: has a calibrator and a network; give kind='calibrator' or kind='network'")
    if kind and kind not in found:
        raise ToodError(f"{source}: expected a {CLASSES[kind]}, found a {CLASSES[found[0]]}")
    if (kind or found[0]) == "calibrator":
        return TOOD.load(folder / FILES["calibrator"])
    from tood.models import Network

    return Network.load(folder / FILES["network"], backbone)


def _downloaded(source: str, files: list[str], download: dict[str, Any]) -> Path:
    """The folder of a repository's files, downloaded from the Hub."""
    if len(source.split("/")) != 2 or source.startswith((".", "/", "~")):
        raise ToodError(f"{source}: no such folder, and not 'owner/name' of a repository on the Hub")
    with peer("huggingface_hub", '"tood[hub]"', "from_pretrained"):
        from huggingface_hub import snapshot_download
    return Path(snapshot_download(source, allow_patterns=[*files, "README.md"], **download))


def model_card(item: Item, **card: Entry) -> str:
    """The text of the model card, Markdown with a YAML header.

    Parameters
    ----------
    item:
        As for :func:`save_pretrained`.
    card:
        As for :func:`save_pretrained`.
    """
    return _card(item, PLACEHOLDER, False, card)


def _card(item: Item, repo_id: str, beside: bool, card: dict[str, Entry]) -> str:
    for name, value in card.items():
        texts = value if isinstance(value, list) else [value]
        if not name.isidentifier() or not all(isinstance(text, str) for text in texts):
            raise ToodError(f"card: expected texts and lists of texts, found {name} = {value!r}")
    kind = kind_of(type(item))
    own = card.get("tags", [])
    tags = TAGS + ([own] if isinstance(own, str) else own)
    header: dict[str, Entry] = {"library_name": "tood", **card, "tags": tags}
    entries = [f"{name}: {json.dumps(value, ensure_ascii=False)}" for name, value in header.items()]  # JSON is YAML
    body = _calibrator_card(item, repo_id) if kind == "calibrator" else _network_card(item, repo_id)
    if beside:
        body += ["", *_also(_other(item), repo_id)]
    return "\n".join(["---", *entries, "---", "", *body, "", f"Made with tood {tood.__version__}.", ""])


def _calibrator_card(cal: Any, repo_id: str) -> list[str]:
    diagnostics = cal.diagnostics_
    total = sum(d.samples for d in diagnostics)
    dead = ", ".join(str(d.task) for d in diagnostics if not d.alive) or "none"
    settings = ", ".join(f"{name} `{value}`" for name, value in cal.get_params().items() if name != "tasks")
    lines = [
        "# TOOD calibrator",
        "",
        "Turns the logits of a class-incremental classifier into one score per sample; higher = in-distribution.",
        "",
        f"- Settings: {settings}.",
        f"- Calibration set: {total} samples, {min(d.samples for d in diagnostics)} of the smallest task.",
        "",
        "| task | logit columns | calibration samples | own against rest, AUROC (95 % interval) | alive |",
        "| --- | --- | --- | --- | --- |",
    ]
    for columns, d in zip(cal.partition_, diagnostics, strict=True):
        known = "–" if np.isnan(d.auroc) else f"{d.auroc:.3f} ({d.low:.3f} to {d.high:.3f})"
        lines.append(f"| {d.task} | {_short(columns)} | {d.samples} | {known} | {'yes' if d.alive else 'no'} |")
    return [
        *lines,
        "",
        "## Limits",
        "",
        "- It belongs to one network: after further training, calibrate again.",
        "- Logits must have the columns of the table, in that order.",
        "- The score ranks samples; it is not a probability. A threshold must come from ID samples of your own.",
        f"- Tasks whose logits do not separate their own samples from the rest (not alive): {dead}.",
        "",
        *_usage(IMPORTS["calibrator"], f'scores = TOOD.from_pretrained("{repo_id}").score(logits)'),
    ]


def _network_card(network: Any, repo_id: str) -> list[str]:
    weight, _ = network.effective_head()
    if network.spec is None:
        design = "not one of tood's: pass it as `backbone=` (of a wrapped model: `Network.wrap(model).backbone`)"
    else:
        design = f"`{network.spec['name']}`"
    backbone = ", backbone=module" if network.spec is None else ""
    return [
        "# Network of a continual learner",
        "",
        f"- Backbone: {design}.",
        f"- Head: {weight.shape[0]} logit columns, {weight.shape[1]} features.",
        f"- Parameters: {sum(p.numel() for p in network.parameters()):,}.",
        "",
        "## Limits",
        "",
        "- It answers with one of its classes for any input; score its logits with a detector before you trust it.",
        "- Inputs must be normalised as in training.",
        "",
        *_usage(
            IMPORTS["network"],
            f'logits = Network.from_pretrained("{repo_id}"{backbone}).eval()(inputs)',
        ),
    ]


def _also(kind: Kind, repo_id: str) -> list[str]:
    """The section of the card about the other kind in the same place."""
    what = "the calibrator of a network's logits" if kind == "calibrator" else "a network"
    note = "; its tasks and limits are in `diagnostics_`" if kind == "calibrator" else ""
    code = ["```python", IMPORTS[kind], "", f'{kind} = {CLASSES[kind]}.from_pretrained("{repo_id}")', "```"]
    return ["## Also here", "", f"`{FILES[kind]}` is {what}{note}:", "", *code]


def _usage(*lines: str) -> list[str]:
    """The section of the card with code to copy; the first line imports."""
    return ["## Use", "", "```python", lines[0], "", *lines[1:], "```"]


def _short(columns: Any) -> str:
    """Columns as text: a range if they are one."""
    first, last = columns[0], columns[-1]
    if len(columns) > 2 and list(columns) == list(range(first, last + 1)):
        return f"{first} to {last}"
    return ", ".join(map(str, columns))


def _other(item: Item) -> Kind:
    return "network" if kind_of(type(item)) == "calibrator" else "calibrator"


def kind_of(cls: type) -> Kind:
    """The kind of a class: calibrator or network."""
    if issubclass(cls, TOOD):
        return "calibrator"
    from tood.models import Network

    if issubclass(cls, Network):
        return "network"
    raise ToodError(f"item: expected a TOOD or a Network, found {cls.__name__}")
