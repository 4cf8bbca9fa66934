"""Deployment: live calibration, drift detection, and scoring of files of logits."""

from tood.deploy.drift import Drift, DriftMonitor
from tood.deploy.live import LiveTOOD
from tood.deploy.plan import plan

__all__ = ["Drift", "DriftMonitor", "LiveTOOD", "plan"]
