import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.special import logsumexp
from scipy.stats import median_abs_deviation
from sklearn.base import clone
from sklearn.metrics import roc_auc_score

from tood import TOOD, Partition, ToodError, energy
from tood.calibration.tood import KIND
from tood.storage import files

PAPER = ["mean_shift", "robust_anchor", "temperature", "none"]
VARIANTS = [*PAPER, "background"]
REFERENCES = ["latest", "oldest", "widest", "mean"]


def problem(tasks=4, size=3, per_class=20, seed=0, gap=4.0):
    """Calibration logits whose old tasks have shrunk, test logits of all classes, and OOD logits."""
    rng = np.random.default_rng(seed)
    partition = Partition(np.split(rng.permutation(tasks * size), tasks))
    shift = gap * (partition.column_tasks - tasks)
    labels = np.repeat(np.arange(tasks * size), per_class)
    draw = lambda y: rng.normal(size=(len(y), tasks * size)) * 2 + 9 * np.eye(tasks * size)[y] + shift  # noqa: E731
    ood = rng.normal(size=(300, tasks * size)) * 2 + shift
    return partition, draw(labels), labels, draw(labels), ood


def by_hand(partition, cal_logits, labels, logits, variant, margin, reference):
    """Algorithm 1 of the paper, sample by sample."""
    own = []
    for task in partition:
        rows = [x for x, y in zip(cal_logits, labels, strict=True) if y in task]
        own.append(np.array([logsumexp(x[list(task)]) for x in rows]))
    statistics = {
        "mean": np.array([e.mean() for e in own]),
        "median": np.array([np.median(e) for e in own]),
        "mad": np.array([median_abs_deviation(e, scale="normal") for e in own]),
        "std": np.array([e.std() for e in own]),
    }
    widest = int(np.argmax(statistics["mad"]))
    of = {
        "latest": lambda v: v[-1],
        "oldest": lambda v: v[0],
        "widest": lambda v: v[widest],
        "mean": np.mean,
    }[reference]
    scores = []
    for x in logits:
        norm = []
        for t, task in enumerate(partition):
            e = logsumexp(x[list(task)])
            if variant == "mean_shift":
                e = e + (of(statistics["mean"]) - statistics["mean"][t])
            elif variant == "robust_anchor":
                z = (e - statistics["median"][t]) / statistics["mad"][t]
                e = z * of(statistics["mad"]) + of(statistics["median"])
            elif variant == "temperature":
                e = e / statistics["std"][t]
            norm.append(e)
        first, second = sorted(norm, reverse=True)[:2]
        scores.append(first + margin * (first - second))
    return statistics, np.array(scores)


@pytest.mark.parametrize("reference", REFERENCES)
@pytest.mark.parametrize(("margin", "per_class"), [(0, 7), (0.5, 7), (0.5, 50)])
def test_background_is_its_formula(reference, margin, per_class):
    """Sample by sample: trust d² / (d² + ¼), channels moved towards (E - r) / q, the energy plus half the vote."""
    partition, cal_logits, labels, logits, ood = problem(per_class=per_class)
    tasks, x = partition.column_tasks[labels], np.concatenate([logits, ood])
    cal = TOOD(partition, margin=margin, reference=reference).fit(cal_logits, labels)
    known, energies = (
        np.stack([logsumexp(z[:, list(task)], axis=1) for task in partition], axis=1) for z in (cal_logits, x)
    )
    r, q, w = np.empty((3, len(partition)))
    for t in range(len(partition)):
        own, rest = known[tasks == t, t], known[tasks != t, t]
        r[t], q[t] = rest.mean(), rest.std()
        squared = max(own.mean() - r[t], 0) ** 2 / ((own.var() + rest.var()) / 2)
        w[t] = squared / (squared + 0.25)
    common = np.exp(np.average(np.log(q), weights=w))
    u, own = ((e - r) * (common / q) ** w + r + w * (np.average(r, weights=w) - r) for e in (energies, known))
    votes = own[np.arange(len(tasks)), tasks]  # each sample in its own channel
    gain = 0.5 * w.mean() * known[np.arange(len(tasks)), tasks].std() / votes.std()
    first, second = np.sort(u, axis=1)[:, :-3:-1].T
    expected = logsumexp(x, axis=1) + gain * (first + margin * (first - second) - votes.mean())
    np.testing.assert_allclose(cal.score(x), expected, rtol=1e-9)
    np.testing.assert_array_equal(cal.assign(x), u.argmax(axis=1))
    np.testing.assert_allclose(cal.normalized_energies(x), u, rtol=1e-9, atol=1e-9)


def test_a_channel_in_which_others_answer_louder_is_not_moved():
    """Only evidence for the own task counts: a channel that the rest excites more keeps its raw energy."""
    own = {"count": [9, 9], "mean": [1.0, 6.0], "std": [1.0, 1.0]}
    for rest, moved in (([4.0, 1.0], False), ([-4.0, 1.0], True)):
        statistics = own | {"rest_mean": rest, "rest_std": [1.0, 2.0]}
        channels = TOOD.from_statistics([[0], [1]], statistics).channels_
        assert (channels.scale[0] != 1 or channels.location[0] != 0) == moved


def test_without_any_trust_the_score_is_the_energy():
    rng = np.random.default_rng(0)
    labels, logits = np.repeat(np.arange(4), 50), rng.normal(size=(200, 4))
    statistics = TOOD([[0, 1], [2, 3]]).fit(logits, labels).statistics_
    statistics |= {"rest_mean": statistics["mean"] + 1}
    cal = TOOD.from_statistics([[0, 1], [2, 3]], statistics)
    np.testing.assert_allclose(cal.score(logits), energy(logits), rtol=1e-12)


@pytest.mark.parametrize("variant", PAPER)
@pytest.mark.parametrize("reference", REFERENCES)
@pytest.mark.parametrize("margin", [0, 0.5, 2])
def test_is_algorithm_1(variant, reference, margin):
    partition, cal_logits, labels, logits, ood = problem(per_class=7)
    cal = TOOD(partition, variant=variant, margin=margin, reference=reference).fit(cal_logits, labels)
    statistics, expected = by_hand(partition, cal_logits, labels, ood[:40], variant, margin, reference)
    for name, values in statistics.items():
        assert cal.statistics_[name].dtype == np.float64
        np.testing.assert_allclose(cal.statistics_[name], values, rtol=1e-12)
    assert cal.statistics_["count"].tolist() == [21] * 4
    np.testing.assert_allclose(cal.score(ood[:40]), expected, rtol=1e-11)
    norm = cal.normalized_energies(logits)
    top = np.sort(norm, axis=1)
    np.testing.assert_allclose(cal.score(logits), top[:, -1] + margin * (top[:, -1] - top[:, -2]), rtol=1e-10)
    np.testing.assert_array_equal(cal.assign(logits), norm.argmax(axis=1))
    tensor = torch.from_numpy(ood[:40])
    np.testing.assert_allclose(cal.score(tensor).numpy(), expected, rtol=1e-11)


@given(st.integers(0, 3), st.floats(-500, 500), st.integers(0, 1000))
@settings(max_examples=30, deadline=None)
def test_mean_shift_undoes_a_shift_of_one_tasks_logits(task, shift, seed):
    partition, cal_logits, labels, logits, _ = problem(seed=seed, per_class=4)
    columns = list(partition.tasks[task])
    before = TOOD(partition, variant="mean_shift").fit(cal_logits, labels).score(logits)
    moved_cal, moved = cal_logits.copy(), logits.copy()
    moved_cal[:, columns] += shift
    moved[:, columns] += shift
    after = TOOD(partition, variant="mean_shift").fit(moved_cal, labels).score(moved)
    constant = shift if task == len(partition) - 1 else 0.0  # the reference task moves every score alike
    np.testing.assert_allclose(after, before + constant, atol=1e-9)


def test_the_default_leaves_a_dead_channel_where_it_is():
    """Channel 0 answers alike to everything, far below the others: re-centring would only lift its noise."""
    partition, cal_logits, labels, logits, ood = problem(tasks=3, gap=0.0)
    rng, dead = np.random.default_rng(5), list(partition.tasks[0])
    for x in (cal_logits, logits, ood):
        x[:, dead] = rng.normal(size=(len(x), len(dead))) * 2 - 30
    truth = np.r_[np.ones(len(logits)), np.zeros(len(ood))]
    auroc = {}
    for variant in ("none", "mean_shift", "background"):
        cal = TOOD(partition, variant, margin=0).fit(cal_logits, labels)
        auroc[variant] = roc_auc_score(truth, np.r_[cal.score(logits), cal.score(ood)])
    assert auroc["mean_shift"] < auroc["none"] - 0.1
    assert abs(auroc["background"] - auroc["none"]) < 0.01


def test_the_score_does_not_depend_on_the_order_of_the_samples():
    partition, cal_logits, labels, logits, _ = problem()
    order = np.random.default_rng(0).permutation(len(labels))
    one, other = (TOOD(partition).fit(cal_logits[o], labels[o]) for o in (slice(None), order))
    np.testing.assert_array_equal(one.score(logits), other.score(logits))


def test_the_default_needs_to_know_the_other_tasks():
    partition, cal_logits, labels, logits, _ = problem()
    known = TOOD(partition).fit(cal_logits, labels).statistics_
    own = {name: values for name, values in known.items() if not name.startswith("rest")}
    assert TOOD.from_statistics(partition, own, variant="robust_anchor").score(logits).shape == (len(logits),)
    with pytest.raises(ToodError, match="'background' needs 'rest_mean'"):
        TOOD.from_statistics(partition, own).score(logits)


@pytest.mark.parametrize("variant", ["robust_anchor", "mean_shift", "background"])
@pytest.mark.parametrize("dtype", [np.float64, np.float32])
def test_the_reference_never_changes_the_ranking(variant, dtype):
    partition, cal_logits, labels, logits, ood = problem(seed=3)
    truth = np.r_[np.ones(len(logits)), np.zeros(len(ood))]
    scored = np.concatenate([logits, ood]).astype(dtype)
    auroc = [
        roc_auc_score(truth, TOOD(partition, variant, reference=r).fit(cal_logits, labels).score(scored))
        for r in REFERENCES
    ]
    assert max(auroc) - min(auroc) <= 1e-9


@pytest.mark.parametrize("variant", VARIANTS)
def test_one_task_ranks_as_energy(variant):
    _, cal_logits, labels, logits, ood = problem()
    cal = TOOD([range(12)], variant=variant, margin=0.5).fit(cal_logits, labels)
    for x in (logits, torch.from_numpy(ood)):
        np.testing.assert_array_equal(
            np.argsort(cal.score(x).tolist(), kind="stable"), np.argsort(energy(x).tolist(), kind="stable")
        )


def test_permuting_columns_with_the_partition_changes_nothing():
    partition, cal_logits, labels, logits, _ = problem()
    order = np.random.default_rng(9).permutation(12)
    place = np.argsort(order)  # the new column of each old one
    moved = TOOD([place[list(task)] for task in partition]).fit(cal_logits[:, order], place[labels])
    np.testing.assert_allclose(
        moved.score(logits[:, order]), TOOD(partition).fit(cal_logits, labels).score(logits), rtol=1e-12
    )


def test_half_precision_agrees_to_its_own_precision():
    partition, cal_logits, labels, logits, _ = problem(gap=1.0)
    exact = TOOD(partition).fit(cal_logits, labels).score(logits)
    half = TOOD(partition).fit(cal_logits.astype(np.float16), labels).score(logits.astype(np.float16))
    assert half.dtype == np.float32
    np.testing.assert_allclose(half, exact, atol=40 * np.finfo(np.float16).eps * np.abs(exact).max())
    brain = TOOD(partition).fit(torch.tensor(cal_logits).bfloat16(), torch.tensor(labels))
    assert brain.score(torch.tensor(logits).bfloat16()).dtype == torch.float32


def test_huge_logits_and_distant_channels_stay_exact():
    partition, cal_logits, labels, logits, _ = problem(gap=0.0)
    shift = 1e4 + 1e3 * partition.column_tasks
    cal = TOOD(partition, "mean_shift").fit(cal_logits + shift, labels)
    plain = TOOD(partition, "mean_shift").fit(cal_logits, labels)
    np.testing.assert_allclose(cal.score(logits + shift) - (1e4 + 3e3), plain.score(logits), atol=1e-8)


@pytest.mark.parametrize("shape", [[1] * 1000, [3, 1, 7, 1], [100_000]])
def test_any_number_and_size_of_tasks(shape):
    columns = sum(shape)
    labels = np.arange(columns) if columns < 10_000 else np.array([5, 70_000])
    logits = np.random.default_rng(0).normal(size=(len(labels), columns)).astype(np.float32)
    cal = TOOD(Partition.from_sizes(shape), variant="mean_shift").fit(logits, labels)
    assert np.isfinite(cal.score(logits[:20])).all()
    assert cal.normalized_energies(logits[:2]).shape == (2, len(shape))


def test_the_winner_is_the_same_however_it_is_asked_for():
    import torch

    rng, labels = np.random.default_rng(0), np.repeat(np.arange(4), 50)
    logits = (1000 + rng.normal(size=(200, 4))).astype(np.float32)
    cal = TOOD([[0, 1], [2, 3]]).fit(logits, labels)
    np.testing.assert_array_equal(cal.assign(logits), cal.score_and_assign(logits)[1])
    plain = TOOD([[c] for c in range(4)], variant="none").fit(logits, labels)
    assert plain.score_and_assign(torch.zeros((3, 4)))[1].tolist() == plain.assign(np.zeros((3, 4))).tolist()
    assert plain.assign(np.zeros((3, 4))).tolist() == [0, 0, 0]


def test_a_score_that_overflows_is_an_error():
    rng, labels = np.random.default_rng(0), np.repeat(np.arange(4), 5)
    cal = TOOD([[0, 1], [2, 3]], "robust_anchor").fit(rng.normal(size=(20, 4)).astype(np.float32), labels)
    masked = np.zeros((2, 4), dtype=np.float32)
    masked[1, 2:] = np.finfo(np.float32).min
    with np.errstate(over="ignore"), pytest.raises(ToodError, match="the score of row 1 overflows float32"):
        cal.score(masked)


def test_a_channel_without_spread_is_floored_and_named(tmp_path, recwarn):
    partition, cal_logits, labels, logits, _ = problem(tasks=2)
    rows = (partition.column_tasks[labels] == 0).nonzero()[0]
    cal_logits[rows] = cal_logits[rows[0]]
    with pytest.warns(UserWarning, match=r"task 0 have no spread \(mad or std 0\)"):
        cal = TOOD(partition, "robust_anchor").fit(cal_logits, labels)
    assert cal.statistics_["mad"][0] == 1e-6 * max(1, abs(cal.statistics_["median"][0]))
    assert np.isfinite(cal.score(logits)).all()
    with pytest.warns(UserWarning, match="task 0 have no spread"):  # set_params can change the variant after the fit
        TOOD(partition, "mean_shift").fit(cal_logits, labels)
    cal.save(tmp_path / "cal")
    assert not recwarn
    np.testing.assert_array_equal(TOOD.load(tmp_path / "cal").score(logits), cal.score(logits))
    assert not recwarn  # the warning was for whoever fitted it


def test_settings_follow_scikit_learn(recwarn):
    partition, cal_logits, labels, logits, _ = problem()
    cal = TOOD(partition, variant="mean_shift", margin=0.25, reference="oldest")
    copy = clone(cal)
    assert copy.get_params() == cal.get_params() and copy is not cal
    cal.fit(cal_logits, labels).set_params(variant="robust_anchor", margin=0, reference="latest")
    np.testing.assert_allclose(
        cal.score(logits), TOOD(partition, "robust_anchor", margin=0).fit(cal_logits, labels).score(logits), rtol=1e-14
    )
    with pytest.raises(ToodError, match="unknown setting 'variants'; did you mean 'variant'"):
        cal.set_params(variants="none")
    assert "mean_shift" in repr(copy)
    assert not recwarn.list


@pytest.mark.parametrize("variant", VARIANTS)
def test_save_and_load(tmp_path, variant):
    partition, cal_logits, labels, logits, _ = problem()
    cal = TOOD(partition, variant=variant, margin=0.3, reference="mean").fit(cal_logits, labels)
    cal.save(tmp_path / "cal.safetensors")
    loaded = TOOD.load(tmp_path / "cal.safetensors")
    assert loaded.get_params() == {"tasks": partition, "variant": variant, "margin": 0.3, "reference": "mean"}
    np.testing.assert_array_equal(loaded.score(logits), cal.score(logits))
    loaded.save(tmp_path / "again.safetensors")
    assert (tmp_path / "again.safetensors").read_bytes() == (tmp_path / "cal.safetensors").read_bytes()


def test_files_that_are_not_calibrators(tmp_path):
    partition, cal_logits, labels, _, _ = problem()
    path = tmp_path / "cal.safetensors"
    TOOD(partition).fit(cal_logits, labels).save(path)
    whole = path.read_bytes()
    with pytest.raises(ToodError, match="no such file"):
        TOOD.load(tmp_path / "absent.safetensors")
    path.write_bytes(whole[:-9])
    with pytest.raises(ToodError, match=r"cal\.safetensors: cannot be read"):
        TOOD.load(path)
    path.write_bytes(whole.replace(b"tood-calibrator", b"tood-kalibrator"))
    with pytest.raises(ToodError, match="expected a tood-calibrator file"):
        TOOD.load(path)
    path.write_bytes(whole.replace(b'format\\": 2', b'format\\": 9'))
    with pytest.raises(ToodError, match="newer"):
        TOOD.load(path)
    path.write_bytes(whole.replace(b"background", b"backgrount"))
    with pytest.raises(ToodError, match="damaged: its content does not match its digest"):
        TOOD.load(path)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"labels": [0, 1, 2, 4]}, "expected logit columns 0 to 3, found 4 at row 3"),
        ({"labels": [0, 1, 1, 0]}, "no calibration sample for task 1"),
        ({"labels": [0, 1, 2]}, "labels: expected 4 entries, one per row, found 3"),
        ({"labels": [0.0, 1.0, 2.0, 2.5]}, "expected one axis of whole numbers"),
        ({"logits": np.eye(4)[:, :3]}, "expected 4 columns"),
        ({"logits": np.full((4, 4), np.nan)}, "found nan in row 0, column 0"),
        ({"logits": np.empty((0, 4)), "labels": np.empty(0, dtype=int)}, "at least one calibration sample"),
        ({"variant": "robust"}, "unknown variant 'robust'; did you mean 'robust_anchor'"),
        ({"reference": "last"}, "unknown reference 'last'; did you mean 'latest'"),
        ({"margin": -0.1}, "margin: expected a number, 0 or more, found -0.1"),
        ({"margin": float("inf")}, "margin"),
        ({"tasks": [[0, 1], [1, 2, 3]]}, "column 1 is in task 0 and in task 1"),
    ],
)
def test_bad_input_is_named(change, message):
    given = {"tasks": [[0, 1], [2, 3]], "logits": np.eye(4), "labels": [0, 1, 2, 3]} | change
    logits, labels = given.pop("logits"), given.pop("labels")
    with pytest.raises(ToodError, match=message):
        TOOD(**given).fit(logits, labels)


@pytest.mark.filterwarnings("ignore")
def test_warnings_point_at_the_caller():
    partition, logits, labels, test, _ = problem()
    with pytest.warns(UserWarning, match="labels") as warned:
        cal = TOOD(partition).fit(logits, np.roll(labels, 20))  # labels of other classes
    assert {w.filename for w in warned} == {__file__}
    cal = TOOD(partition).fit(logits, labels)
    with pytest.warns(UserWarning, match="outside the range") as warned:
        cal.score(1000 * test)
    assert {w.filename for w in warned} == {__file__}


def test_impossible_parameters_are_refused():
    with pytest.raises(ToodError, match="variant"):
        TOOD([[0], [1]]).set_params(variant="x")
    with pytest.raises(ToodError, match="found an iterator"):
        TOOD(iter([[0], [1]]))
    with pytest.raises(ToodError, match="found no count"):
        TOOD.from_statistics([[0], [1]], {name: [0.0, 1.0] for name in ("mean", "median", "mad", "std")})


def test_statistics_that_cannot_be_are_refused(tmp_path):
    partition, logits, labels, *_ = problem()
    cal = TOOD(partition).fit(logits, labels)
    for name, value in {"count": 0.0, "std": -1.0, "rest_std": -1.0, "mean": np.nan}.items():
        with pytest.raises(ToodError, match=f"statistics: {name}: expected"):
            TOOD.from_statistics(partition, {**cal.statistics_, name: np.full(4, value)})
    cal.save(tmp_path / "cal.safetensors")
    tensors, metadata = files.read_tensors(tmp_path / "cal.safetensors", KIND)
    for sizes in ([-1, 13], [3, 3]):
        files.write_tensors(tmp_path / "bad.safetensors", KIND, {**tensors, "sizes": np.array(sizes)}, metadata)
        with pytest.raises(ToodError, match="not a usable calibrator"):
            TOOD.load(tmp_path / "bad.safetensors")
    files.write_tensors(tmp_path / "bad.safetensors", KIND, tensors, {**metadata, "settings": "[" * 100_000})
    with pytest.raises(ToodError, match="not a usable calibrator"):
        TOOD.load(tmp_path / "bad.safetensors")
