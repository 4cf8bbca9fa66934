"""Audit of a run directory: how much OOD detection was lost, why, and what to use."""

from tood.audit.audits import Audit, audit
from tood.audit.verdict import Verdict

__all__ = ["Audit", "Verdict", "audit"]
