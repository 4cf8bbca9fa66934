"""What holds for every learner, whatever it computes."""

from __future__ import annotations

import pytest
import torch

from tood import learners
from tood.testing import check_learner

CLOSED_FORM = {"ncm", "slda", "fecam", "ranpac"}  # in test_closed_form.py, with settings of their own


@pytest.mark.parametrize("name", sorted(set(learners.names()) - CLOSED_FORM))
def test_public_contract(name):
    check_learner(learners.classes()[name])


class WithAdam(learners.Learner):
    """Fine-tuning with AdamW."""

    name, title, citation = "with_adam", "AdamW", "-"

    def optimizer(self):
        return torch.optim.AdamW(self.network.parameters(), self.settings.lr)


def test_any_optimiser_resumes_with_its_state():
    check_learner(WithAdam)
