"""Methods for the Hugging Face Hub, shared by calibrators and networks; ``huggingface_hub`` is imported when used."""

from __future__ import annotations

import importlib
import os
from pathlib import Path
from typing import Any, TypeVar

from tood.errors import ToodError

__all__ = ["HubMixin"]

Self = TypeVar("Self", bound="HubMixin")


class HubMixin:
    """``save_pretrained``, ``push_to_hub`` and ``from_pretrained``, named as in ``huggingface_hub.ModelHubMixin``."""

    def save_pretrained(self, save_directory: str | os.PathLike[str], **card: str | list[str]) -> Path:
        """Write weights and model card to a folder: see :func:`tood.integrations.huggingface.save_pretrained`."""
        folder: Path = _functions().save_pretrained(self, save_directory, **card)
        return folder

    def push_to_hub(self, repo_id: str, **options: Any) -> str:
        """Upload weights and model card: see :func:`tood.integrations.huggingface.push_to_hub`."""
        address: str = _functions().push_to_hub(self, repo_id, **options)
        return address

    @classmethod
    def from_pretrained(cls: type[Self], source: str | os.PathLike[str], **options: Any) -> Self:
        """Load from a folder or the Hub: see :func:`tood.integrations.huggingface.from_pretrained`."""
        functions = _functions()
        item = functions.from_pretrained(source, kind=functions.kind_of(cls), **options)
        if not isinstance(item, cls):
            raise ToodError(f"{os.fspath(source)}: expected a {cls.__name__}, found a {type(item).__name__}")
        return item


def _functions() -> Any:
    return importlib.import_module("tood.integrations.huggingface")
