import numpy as np
import pytest

from tood.paper.toy import MARGINS, Settings, runs
from tood.paper.toy_figure import toy_figure

SMALL = Settings(tasks=6, train=20, exemplars=10, test=20, ood=30, hidden=8, epochs=1)


@pytest.fixture(scope="module")
def results():
    return list(runs([0, 1], SMALL))


def test_the_panels_show_the_measured_figures(results):
    pytest.importorskip("matplotlib")
    gap, margins = toy_figure(results, SMALL).axes
    for axes in (gap, margins):
        assert axes.get_xlabel() and axes.get_title()
    before = gap.get_lines()[0].get_ydata()
    np.testing.assert_allclose(before, np.mean([r.gap["before"] for r in results if r.regime == "separated"], axis=0))
    curve = margins.get_lines()[0]
    expected = np.mean([100 * r.trajectory("robust anchor, λ=0", 5).average() for r in results[:2]])
    np.testing.assert_allclose(curve.get_xdata(), MARGINS)
    np.testing.assert_allclose(curve.get_ydata()[0], expected)
