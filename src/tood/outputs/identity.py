"""Identity of a run: stream, learner, options, preset and seed; its folder name and its label in tables."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

from tood.storage.files import file_name

__all__ = ["RunIdentity", "short_name", "split_method"]

JOINT = "+"  # between a learner and its fine-tuning: icarl+ber


@dataclass(frozen=True)
class RunIdentity:
    """Identity of a run. Runs that differ only in ``seed`` are averaged.

    Parameters
    ----------
    stream, learner:
        Names, as tables show them.
    finetune:
        ``"ber"`` if the run is scored with BER's fine-tuned head, else ``"none"``.
    options:
        Settings that are neither the preset's nor defaults.
    preset, seed:
        The learner's preset and the seed; empty and None for outputs that ``tood run`` did not make.
    tag:
        Short hash of settings that the rest of the folder name does not show; empty if there are none.

    Examples
    --------
    >>> run = RunIdentity("cifar10", "icarl", "ber", {"memory": 500}, "cpu", 0, tag="a1b2c3")
    >>> run.label, run.folder
    ('icarl+ber (memory=500)', 'cifar10-icarl+ber-cpu-s0-a1b2c3')
    """

    stream: str
    learner: str
    finetune: str = "none"
    options: Mapping[str, Any] = field(default_factory=dict, hash=False)
    preset: str = ""
    seed: int | None = None
    tag: str = ""

    @classmethod
    def from_manifest(cls, manifest: Mapping[str, Any], folder: str) -> RunIdentity:
        """Identity from a manifest; if it names no learner, the folder's name is used."""
        options, seed = manifest.get("options"), manifest.get("seed")
        return cls(
            stream=str(manifest.get("stream") or "stream"),
            learner=str(manifest.get("learner") or folder),
            finetune=str(manifest.get("finetune") or "none"),
            options=options if isinstance(options, dict) else {},
            preset=str(manifest.get("preset") or ""),
            seed=seed if isinstance(seed, int) else None,
            tag=str(manifest.get("tag") or ""),
        )

    @classmethod
    def from_label(cls, label: str) -> RunIdentity:
        """Identity from a label in tables, the inverse of :attr:`label`; no stream, and values of options are text.

        >>> run = RunIdentity.from_label("icarl+ber (memory=500) [cpu]")
        >>> run.learner, run.finetune, dict(run.options), run.preset
        ('icarl', 'ber', {'memory': '500'}, 'cpu')
        """
        method, _, rest = label.removesuffix("]").partition(" [") if label.endswith("]") else (label, "", "")
        method, _, named = method.removesuffix(")").partition(" (")
        pairs = [entry.partition("=") for entry in named.split(", ") if entry]
        return cls("", *split_method(method), {name: value for name, _, value in pairs}, preset=rest)

    def to_manifest(self) -> dict[str, Any]:
        """The manifest's entries, the inverse of :meth:`from_manifest`."""
        return {name: value for name, value in asdict(self).items() if name != "tag" or value}

    @property
    def method(self) -> str:
        """Learner and fine-tuning: ``icarl``, ``icarl+ber``."""
        return self.learner if self.finetune == "none" else f"{self.learner}{JOINT}{self.finetune}"

    @property
    def label(self) -> str:
        """Label in tables, method and options: ``icarl``, ``icarl+ber``, ``icarl (memory=500)``."""
        named = ", ".join(f"{name}={value}" for name, value in sorted(self.options.items()))
        return f"{self.method} ({named})" if named else self.method

    @property
    def plain(self) -> bool:
        """True without fine-tuning and options."""
        return self.finetune == "none" and not self.options

    @property
    def folder(self) -> str:
        """Name of the run directory: ``STREAM-LEARNER-PRESET-sSEED`` and the tag."""
        parts = [self.stream, self.method, self.preset, f"s{self.seed}", self.tag]
        return "-".join(file_name(part) for part in parts if part)


def split_method(method: str) -> tuple[str, str]:
    """Learner and fine-tuning of a name such as ``icarl+ber``.

    >>> split_method("icarl+ber"), split_method("wa")
    (('icarl', 'ber'), ('wa', 'none'))
    """
    learner, _, finetune = method.partition(JOINT)
    return learner, finetune or "none"


def short_name(name: str) -> str:
    """``Attribute`` of ``package.module:Attribute``; any other name unchanged."""
    return name.rpartition(":")[2]
