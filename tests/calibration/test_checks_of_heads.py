import numpy as np
import pytest
from sklearn.datasets import load_digits
from sklearn.ensemble import RandomForestClassifier
from sklearn.linear_model import LogisticRegression
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

from tood import TOOD, ToodError, energy
from tood.metrics import auroc

RNG = np.random.default_rng(0)
LABELS = np.repeat(np.arange(4), 30)


def test_cosines_get_a_hint_and_scaled_ones_none(recwarn):
    cosines = np.clip(0.25 + 0.1 * np.eye(4)[LABELS] + 0.02 * RNG.normal(size=(120, 4)), -1, 1)
    with pytest.warns(UserWarning, match=r"all lie in \[-1, 1\]; cosines need the factor"):
        TOOD([[0, 1], [2, 3]]).fit(cosines, LABELS)
    recwarn.clear()
    TOOD([[0, 1], [2, 3]]).fit(100 * cosines, LABELS)
    assert not [warning for warning in recwarn if "cosines" in str(warning.message)]


def test_several_labels_per_sample_are_refused():
    with pytest.raises(
        ToodError, match=r"one class per sample, found shape \(120, 4\); several labels .* not supported"
    ):
        TOOD([[0, 1], [2, 3]]).fit(RNG.normal(size=(120, 4)), np.eye(4, dtype=int)[LABELS])


@pytest.mark.filterwarnings("ignore")
def test_classifiers_of_scikit_learn_detect_unseen_digits():
    x, y = load_digits(return_X_y=True)
    known, unknown = np.flatnonzero(y < 8), x[y >= 8]
    train, rest, test = np.split(known, [700, 1000])
    linear = make_pipeline(StandardScaler(), LogisticRegression()).fit(x[train], y[train])
    forest = RandomForestClassifier(random_state=0).fit(x[train], y[train])

    def log_probabilities(v):  # their energy is 0 for every input, so it detects nothing
        return np.log(np.clip(forest.predict_proba(v), 1e-6, 1))

    for logits, bar in ((linear.decision_function, 0.9), (log_probabilities, 0.75)):
        cal = TOOD([[0, 1, 2, 3], [4, 5, 6, 7]]).fit(logits(x[rest]), y[rest])
        assert auroc(cal.score(logits(x[test])), cal.score(logits(unknown))) > bar
    assert np.abs(energy(log_probabilities(x[test]))).max() < 1e-5
