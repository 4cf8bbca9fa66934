"""Audit of a run directory: how much OOD detection was lost, why, and what to use."""

from tood.audit.audits import Audit, audit, ensure_verdict
from tood.audit.verdict import Verdict, read_verdict

__all__ = ["Audit", "Verdict", "audit", "ensure_verdict", "read_verdict"]
