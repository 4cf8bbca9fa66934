"""The public contract tests: they accept what is right, and name the rule that a mistake breaks."""

from __future__ import annotations

import re
from dataclasses import dataclass

import numpy as np
import pytest
import torch
from torch.nn.functional import cross_entropy

from tood import ToodError
from tood.detectors import Detector
from tood.learners import Learner, Settings
from tood.testing import ContractError, check_detector, check_learner


class Near(Detector):
    """Minus the distance to the mean of all fit features, at a power."""

    name = "near"
    title = "Near"
    citation = "Nobody, 2026"
    needs = frozenset({"features"})

    def __init__(self, power: float = 1.0) -> None:
        self.power = power

    grid = {"power": (1.0, 2.0)}  # noqa: RUF012

    def _fit(self, data):
        total, count = 0.0, 0
        for rows in data:
            total, count = total + rows.features.sum(axis=0, dtype=np.float64), count + len(rows.features)
        self.mean_ = total / count

    def distance(self, rows):
        return np.linalg.norm(rows.features - self.mean_, axis=1) ** self.power

    def _score(self, rows, prepared):
        return np.linalg.norm(rows.features, axis=1) - 0.001 * self.distance(rows)


def test_a_detector_that_is_right():
    check_detector(Near)
    check_detector(Near, power=2.0)


def variant(**attributes):
    return type("Wrong", (Near,), {"__doc__": "A wrong detector.", **attributes})


def stores_something_else(self, power=1.0):
    self.exponent = power


def stores_more(self, power=1.0):
    self.power, self.cache = power, {}


def keeps_state_elsewhere(self, data):
    Near._fit(self, data)
    self.hidden = self.mean_
    del self.mean_


def uses_it(self, rows):
    return rows.features @ self.hidden


def takes_the_first_block(self, data):
    self.mean_ = next(iter(data)).features.mean(axis=0)


def changes_its_input(self, rows, prepared):
    rows.features[:] = np.abs(rows.features) + 1
    return Near._score(self, rows, prepared)


def reads_the_power(self, data):
    Near._fit(self, data)
    self.mean_ = self.mean_**self.power


NAN = lambda self, rows, prepared: np.log(rows.features.sum(axis=1) - rows.features.sum(axis=1))  # noqa: E731
RANDOM = lambda self, rows, prepared: Near._score(self, rows, prepared) + np.random.normal(size=len(rows.features))  # noqa: E731, NPY002


@pytest.mark.parametrize(
    ("attributes", "rule", "found"),
    [
        ({"title": "", "citation": ""}, "The class declares", "title = '', citation = ''"),
        ({"needs": {"features"}}, "The class declares", r"needs = \{'features'\}"),
        ({"__doc__": None}, "The class declares", "__doc__ = None"),
        ({"__init__": stores_something_else}, "__init__ stores", "'power': 'nothing'"),
        ({"__init__": stores_more}, "__init__ stores", "attributes cache set by __init__"),
        ({"grid": {"powers": (1,)}}, "__init__ stores", "powers in grid or refit"),
        ({"_score": lambda self, rows, prepared: rows.features}, "one finite number", "ValueError|shape"),
        ({"_score": NAN}, "one finite number", "score of row 0 is -inf, expected a finite float"),
        ({"_score": lambda self, rows, prepared: -np.linalg.norm(rows.features, axis=1)}, "A higher", r"AUROC 0\.0"),
        ({"_score": RANDOM}, "The same data", "of 120 scores differ"),
        ({"_score": changes_its_input}, "stay unchanged", "changed: test.features"),
        (
            {"_score": lambda self, rows, prepared: rows.features.max(axis=1) - rows.features.mean()},
            "does not depend on the samples that are scored with it",
            "when scored 1 at a time",
        ),
        ({"_fit": takes_the_first_block}, "does not depend on the order of the samples", "scores differ by"),
        (
            {"_fit": keeps_state_elsewhere, "distance": lambda self, rows: rows.features @ self.hidden},
            "attributes that end in _",
            "hidden",
        ),
        ({"_fit": reads_the_power}, "changed after fit acts at once", "from a new fit with power = 2.0"),
        ({"_fit": lambda self, data: 1 / 0}, "one finite number", "ZeroDivisionError: division by zero"),
    ],
)
@pytest.mark.filterwarnings("ignore")
def test_mistakes_of_detectors(attributes, rule, found):
    with pytest.raises(ContractError) as caught:
        check_detector(variant(**attributes))
    statement, what, advice = str(caught.value).split("\n")
    assert statement.startswith("detector Wrong breaks a rule: ")
    assert re.search(rule, statement), statement
    assert re.search(found, what), what
    assert advice.startswith("  fix:   ")


@dataclass(frozen=True)
class PlainSettings(Settings):
    weight: float = 1.0


class Plain(Learner):
    """Cross-entropy on new data, pulled to the weights before the task."""

    name = "plain"
    title = "Plain"
    citation = "Nobody, 2026"
    settings: PlainSettings
    remembers = ("anchor",)

    def __init__(self, *args):
        super().__init__(*args)
        self.anchor = {}

    def begin_task(self, task):
        self.anchor = {name.replace(".", "-"): p.detach().clone() for name, p in self.network.named_parameters()}

    def loss(self, batch, logits):
        pull = sum(((p - self.anchor[n.replace(".", "-")]) ** 2).sum() for n, p in self.network.named_parameters())
        return cross_entropy(logits, batch.columns) + 1e-3 * self.settings.weight * pull


def test_a_learner_that_is_right():
    check_learner(Plain)


def draws_globally(self, batch, logits):
    return cross_entropy(logits + 0.1 * torch.as_tensor(np.random.normal(size=logits.shape)), batch.columns)  # noqa: NPY002


def seeds_torch(self, task):
    Plain.begin_task(self, task)
    torch.random.default_generator.manual_seed(3)


def grows(self, task):
    self.network.grow(1)


@pytest.mark.parametrize(
    ("attributes", "rule", "found"),
    [
        ({"title": ""}, "The class declares", "title = ''"),
        ({"__annotations__": {"settings": int}}, "Settings are a frozen dataclass", "int"),
        ({"end_task": grows}, "the head has the columns of tasks 0 to t", "3 columns after task 0, expected 2"),
        ({"loss": lambda self, batch, logits: 0 * logits.sum()}, "It learns", "accuracy"),
        ({"loss": lambda self, batch, logits: logits.sum(dim=1)}, "It learns", "only for scalar outputs"),
        ({"loss": lambda self, batch, logits: logits.detach().sum()}, "It learns", "does not require grad"),
        ({"loss": lambda self, batch, logits: 1 / 0}, "It learns", "ZeroDivisionError: division by zero"),
        ({"predict": lambda self, features, logits: logits}, "It learns", r"shape \(48, 2\)"),
        (
            {"training_rows": lambda self, task: np.arange(len(self.stream.train))},
            "uses training samples of tasks 0 to t",
            r"row \d+ of a later task, or reserved, used in task 0",
        ),
        ({"memory_rows": lambda self: self.stream.train_rows(0)[[0, 0]]}, "uses training samples", "has a row twice"),
        ({"memory_rows": lambda self: self.stream.train_rows(0)}, "A memory is replayed", "none of 48 samples"),
        ({"loss": draws_globally}, "The same seed gives the same weights", "two runs with seed 0"),
        ({"remembers": ()}, "interrupted in a task and resumed", "KeyError|other weights"),
    ],
)
@pytest.mark.filterwarnings("ignore")
def test_mistakes_of_learners(attributes, rule, found):
    wrong = type("Wrong", (Plain,), {"__doc__": "A wrong learner.", **attributes})
    with pytest.raises(ContractError) as caught:
        check_learner(wrong)
    statement, what, _ = str(caught.value).split("\n")
    assert re.search(rule, statement), statement
    assert re.search(found, what), what


def test_only_classes_of_the_right_kind():
    with pytest.raises(ToodError, match=r"detector: expected a subclass of tood\.detectors\.Detector, found 'energy'"):
        check_detector("energy")
    with pytest.raises(ToodError, match=r"learner: expected a subclass of tood\.learners\.Learner"):
        check_learner(Detector)
