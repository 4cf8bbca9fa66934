"""Unknown detection for embeddings: classes' means and one shared scatter, in closed form."""

from tood.known.known import RULE, Known

__all__ = ["RULE", "Known"]
