"""The method: statistics of a calibration set, compiled to one score per sample."""

from tood.calibration.channels import Channels
from tood.calibration.tood import TOOD, Reference, Variant

__all__ = ["TOOD", "Channels", "Reference", "Variant"]
