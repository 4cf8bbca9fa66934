"""What holds for every learner, whatever it computes."""

from __future__ import annotations

import pytest

from tood import learners
from tood.testing import check_learner

CLOSED_FORM = {"ncm", "slda", "fecam", "ranpac"}  # in test_closed_form.py, with settings of their own


@pytest.mark.parametrize("name", sorted(set(learners.names()) - CLOSED_FORM))
def test_public_contract(name):
    check_learner(learners.classes()[name])
