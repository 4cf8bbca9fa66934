"""Contract tests for detectors and learners of your own; their messages say which rule is broken and how to fix it.

>>> from tood import detectors
>>> check_detector(detectors.classes()["energy"])

In a test suite: ``def test_contract(): check_detector(MyDetector)``.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from tood.testing.contract import ContractError

if TYPE_CHECKING:
    from tood.detectors import Detector
    from tood.learners import Learner

__all__ = ["ContractError", "check_detector", "check_learner"]


def check_detector(detector: type[Detector], **parameters: Any) -> None:
    """Check the rules that every detector must follow; raise :class:`ContractError` at the first that is broken.

    Parameters
    ----------
    detector:
        The class. It need not be registered.
    parameters:
        Hyper-parameters to check it with; the defaults if none.
    """
    from tood.testing.detector_rules import RULES, DetectorCase

    RULES.check(DetectorCase(detector, parameters), f"detector {detector.__name__}")


def check_learner(learner: type[Learner], **settings: Any) -> None:
    """Check the rules that every learner must follow; raise :class:`ContractError` at the first that is broken.

    Trains tiny networks on generated data, on the CPU; takes seconds.

    Parameters
    ----------
    learner:
        The class. It need not be registered.
    settings:
        Settings to check it with; those not given are small.
    """
    from tood.testing.learner_rules import RULES, LearnerCase

    RULES.check(LearnerCase(learner, settings), f"learner {learner.__name__}")
