"""The release gate: statistics against SciPy and scikit-learn, its errors by simulation, files, bad input, formats."""

import json
import re
import shlex
import xml.etree.ElementTree as ET
from pathlib import Path

import numpy as np
import pytest
from tests import processes

from tood import TOOD, ToodError, detectors
from tood.decision import Conformal
from tood.gate import Version, compare, read_version, render
from tood.gate.statistics import Outcomes, judge, measure, more_samples, paired, paired_auroc
from tood.outputs import Outputs, write_manifest

ROOT = Path(__file__).parents[2]
TASKS = [[0, 1], [2, 3], [4, 5]]
NAMES = ["cat", "dog", "cow", "owl", "ant", "bee"]


def draw(labels, rng, signal=7.0, columns=6):
    return signal * np.eye(columns)[labels] + rng.normal(size=(len(labels), columns))


def version(seed=0, n=1800, signal=7.0, unknown=0.0, tasks=2, threshold=None, **settings):
    """A version that knows the classes of the first tasks; unknown samples have a signal of their own."""
    rng, columns = np.random.default_rng(seed), 2 * tasks
    labels = np.arange(n) % columns
    cal = TOOD(TASKS[:tasks]).fit(draw(labels, rng, signal, columns), labels)
    decision = Conformal(cal).fit(draw(labels, rng, signal, columns))
    shared = np.arange(n) % 4  # classes that every version knows
    calibration = Outputs(draw(labels, rng, signal, columns), labels=labels)
    sets = {"far": Outputs(draw(shared, rng, unknown, columns))}
    known = Outputs(draw(shared, rng, signal, columns), labels=shared)
    return Version(decision, known, sets, calibration=calibration, threshold=threshold, **settings)


def write(folder, made, **more):
    """A version as the files that a CI run would have."""
    (folder / "ood").mkdir(parents=True)
    made.decision.save(folder / "decision.safetensors")
    names = {} if made.classes is None else {"classes": np.array(made.classes)}
    np.savez(folder / "test.npz", logits=made.known.logits, labels=made.known.labels, **names, **more)
    np.savez(folder / "calibration.npz", logits=made.calibration.logits, labels=made.calibration.labels)
    for name, outputs in made.unknown.items():
        np.savez(folder / "ood" / f"{name}.npz", logits=outputs.logits)
    return folder


def test_a_paired_change_is_that_of_mcnemars_table():
    """Bonett and Price's adjusted Wald interval: one sample more in each discordant cell."""
    old, new = np.repeat([1, 1, 0, 0], [60, 12, 5, 23]), np.repeat([1, 0, 1, 0], [60, 12, 5, 23])
    change = paired("accuracy", old, new)
    b, c, n = 13 / 102, 6 / 102, 102
    assert change.gain == pytest.approx(c - b)
    assert change.error == pytest.approx(np.sqrt((b + c - (b - c) ** 2) / n))
    assert (change.old, change.new, change.points) == pytest.approx((0.72, 0.65, -7))
    low, high = change.interval(0.05)
    assert (high - low) / 2 == pytest.approx(1.959964 * change.error)
    assert paired("known rejected", old, new, -1).gain == -change.gain


def test_auroc_agrees_with_scikit_learn_and_its_error_with_the_bootstrap():
    metrics = pytest.importorskip("sklearn.metrics")
    rng = np.random.default_rng(0)
    known, unknown = rng.normal(1, 1, 150).round(1), rng.normal(0, 1, 120).round(1)
    moved = known + rng.normal(0, 0.7, 150).round(1), unknown + rng.normal(0, 0.7, 120).round(1)
    change = paired_auroc((known, unknown), moved)
    truth = np.repeat([1, 0], [150, 120])
    assert change.old == pytest.approx(metrics.roc_auc_score(truth, np.concatenate([known, unknown])))
    assert change.new == pytest.approx(metrics.roc_auc_score(truth, np.concatenate(moved)))
    gains = []
    for _ in range(500):
        i, j = rng.integers(0, 150, 150), rng.integers(0, 120, 120)
        gains.append(paired_auroc((known[i], unknown[j]), (moved[0][i], moved[1][j])).gain)
    assert change.error == pytest.approx(np.std(gains), rel=0.12)


def outcomes(rng, n, flips, loss=0.0, old=None):
    shares = {"accuracy": 0.9, "known": 0.95, "unknown": 0.8}
    if old is None:
        return {name: rng.random(n) < share for name, share in shares.items()}
    return {
        name: np.where(old[name], rng.random(n) >= (loss + flips / 2) / share, rng.random(n) < flips / 2 / (1 - share))
        for name, share in shares.items()
    }


def as_outcomes(v):
    nothing = np.zeros(len(v["known"]))
    return Outcomes(v["accuracy"], (v["known"], nothing), {"set": (~v["unknown"], nothing)})


@pytest.mark.parametrize(
    ("loss", "n", "trials", "verdicts"),
    [
        (0.01, 400, 400, {"block": (0, 0.075)}),  # every metric loses exactly what it may; 0.05 and three errors
        (0.01, 2000, 400, {"block": (0, 0.075), "ship": (0, 0.075)}),
        (0.05, 200, 200, {"ship": (0, 0.0)}),
        (0.05, 1000, 200, {"ship": (0, 0.0), "block": (0.9, 1)}),
        (0.0, 6000, 100, {"ship": (0.8, 1), "block": (0, 0.0)}),
    ],
)
def test_errors_are_rare_and_losses_are_caught(loss, n, trials, verdicts):
    rng, seen = np.random.default_rng(n), []
    for _ in range(trials):
        old = outcomes(rng, n, 0.04)
        new = outcomes(rng, n, 0.04, loss, old)
        seen.append(judge(as_outcomes(old), as_outcomes(new), np.arange(n) % 5).verdict)
    for verdict, (least, most) in verdicts.items():
        assert least <= np.mean([found == verdict for found in seen]) <= most


def test_a_loss_hidden_in_one_task_blocks():
    rng, n = np.random.default_rng(0), 4000
    old = outcomes(rng, n, 0)
    new = {name: values.copy() for name, values in old.items()}
    tasks = np.arange(n) % 10
    new["accuracy"][(tasks == 3) & (rng.random(n) < 0.3)] = False
    new["accuracy"][(tasks != 3) & (rng.random(n) < 0.5)] = True
    judged = judge(as_outcomes(old), as_outcomes(new), tasks)
    assert judged.verdict == "block" and {change.of for change in judged.blocking} == {"task 3"}
    assert judged.changes[0].gain > 0


def test_the_number_of_samples_that_is_suggested_decides():
    rng = np.random.default_rng(0)
    old = outcomes(rng, 500, 0.04)
    judged = judge(as_outcomes(old), as_outcomes(outcomes(rng, 500, 0.04, 0, old)), np.zeros(500, dtype=int))
    assert judged.verdict == "undecided"
    change = judged.undecided[0]._replace(gain=0.0)
    n = 500 + more_samples(change, 1.0, 0.05)
    scaled = change._replace(error=change.error * np.sqrt(500 / n))
    shown = [scaled._replace(gain=rng.normal(0, scaled.error)).keeps(1.0, 0.05) for _ in range(2000)]
    assert np.mean(shown) == pytest.approx(0.8, abs=0.04)


def test_traffic_shows_a_fall_that_known_samples_do_not():
    """A tenth of the traffic is unknown; its rejections fall from 80 to 30 %, those of known samples stay at 5 %."""
    rng, n = np.random.default_rng(0), 20_000
    known = rng.random(n) >= 0.05
    unknown = np.arange(n) < n // 10
    draws = rng.random(n)
    traffic = [np.where(unknown, draws >= share, known) for share in (0.8, 0.3)]
    made = [Outcomes(np.ones(n, bool), (known, draws), {}, (accept, draws)) for accept in traffic]
    change = measure(*made)[-1]
    assert change.of == "traffic" and change.old - change.new == pytest.approx(0.05, abs=0.005)
    assert judge(*made, np.zeros(n, dtype=int)).verdict == "block"


def test_an_old_threshold_that_rejects_less_than_promised_is_no_standard():
    n = 4000
    accept = [np.arange(n) >= n * share for share in (0.01, 0.045)]
    made = [
        Outcomes(np.ones(n, bool), (some, np.zeros(n)), {"set": (np.zeros(n, bool), np.zeros(n))}) for some in accept
    ]
    assert judge(*made, np.zeros(n, dtype=int)).verdict == "block"
    assert judge(*made, np.zeros(n, dtype=int), promise=0.05).verdict == "ship"


def test_a_version_equal_to_the_old_one_ships_and_one_with_new_classes_is_compared_on_the_old():
    old = version()
    assert compare(old, old).verdict == "ship"
    gate = compare(old, version(1, tasks=3), max_loss=3)
    assert gate.verdict == "ship" and [c.of for c in gate.tasks[::2]] == ["task 0", "task 1"]


def test_a_kept_threshold_is_caught_and_recalibration_named():
    old = version(threshold=5.0)
    new = version(1, signal=11.0, unknown=5.0, threshold=5.0)
    gate = compare(old, new)
    assert gate.verdict == "recalibrate"
    blocked = {change.name for change in gate.judged.blocking}
    assert "unknown rejected" in blocked and gate.text.startswith("Recalibrate first: unknown rejected (far)")
    ways = {way.name: way for way in gate.ways}
    assert list(ways) == ["keep the threshold", "keep the calibrator", "recalibrate", "switch to energy"]
    assert ways["keep the threshold"].judged.verdict == "block"
    assert ways["recalibrate"].judged.verdict != "block"
    assert len(gate.text.splitlines()) == 3


def test_what_recalibration_would_give_is_what_it_gives():
    old, new = version(), version(1, signal=11.0, unknown=5.0, threshold=5.0)
    way = compare(old, new).ways[2].judged
    decision = Conformal.cross(TOOD(TASKS[:2]), new.calibration.logits, new.calibration.labels)
    again = compare(old, Version(decision, new.known, new.unknown)).judged
    assert [c.new for c in way.changes] == [c.new for c in again.changes]


def test_samples_are_paired_by_id_and_classes_by_name():
    old = version(classes=NAMES[:4], ids={"known": np.arange(1800), "far": np.arange(1800)})
    order, swap = np.random.default_rng(0).permutation(1800)[:1500], np.array([2, 3, 0, 1])
    cal = TOOD(TASKS[:2]).fit(old.calibration.logits[:, swap], swap[old.calibration.labels])
    new = Version(
        Conformal(cal).fit(old.calibration.logits[:, swap]),
        Outputs(old.known.logits[order][:, swap], labels=swap[old.known.labels[order]]),
        {"far": Outputs(old.unknown["far"].logits[order][:, swap])},
        classes=[NAMES[c] for c in swap],
        ids={"known": order, "far": order},
    )
    gate = compare(old, new)
    assert gate.judged.changes[0].gain == 0 and gate.notes[0].startswith("known: 1500 samples are in both")
    gate = compare(old, Version(old.decision, old.known, old.unknown, classes=NAMES[:4], ids=old.ids))
    assert gate.verdict == "ship"
    with pytest.raises(ToodError, match="another label"):
        compare(
            version(),
            Version(new.decision, Outputs(old.known.logits[:, swap], labels=swap[old.known.labels]), old.unknown),
        )


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda v: Version(v.decision, v.known[:1700], v.unknown), "OLD has 1800 samples, NEW has 1700"),
        (lambda v: Version(v.decision, v.known, {}), "OLD has the sets"),
        (lambda v: Version(v.decision, v.known, {"far": v.unknown["far"][:10]}), "store ids"),
        (lambda v: Version(v.decision, v.known, v.unknown, ids={"known": np.arange(1800)}), "only NEW has ids"),
        (lambda v: Version(v.decision, Outputs(v.known.logits), v.unknown), "expected labels"),
        (
            lambda v: Version(v.decision, version(tasks=3).known, v.unknown),
            "6 columns, the decision has 4.*another model",
        ),
        (lambda v: Version(v.cal, v.known, v.unknown), "only with a threshold"),
        (
            lambda v: Version(v.decision, v.known, v.unknown, predictions=v.known.logits),
            "predictions: expected one axis",
        ),
        (lambda v: Version(v.decision, v.known, v.unknown, classes=["a", "a", "b", "c"]), "4 different names"),
        (lambda v: Version(v.decision, Outputs(v.known.logits * np.nan, labels=v.known.labels), v.unknown), "finite"),
        (lambda v: Version(v.decision, v.known, v.unknown, tasks=[[0, 2], [1, 3]]), "not the first tasks"),
    ],
)
def test_bad_input_is_one_clear_error(change, message):
    with pytest.raises(ToodError, match=message):
        compare(version(), change(version()))


def test_predictions_other_than_the_largest_logit_give_the_accuracy():
    made = version()
    wrong = Version(made.decision, made.known, made.unknown, predictions=(made.known.labels + 1) % 4)
    assert compare(made, wrong).judged.changes[0].new == 0


def test_too_few_samples_or_no_unknown_ones_are_errors():
    few = version(n=20)
    with pytest.raises(ToodError, match="at least 30 samples"):
        compare(few, few)
    made = version()
    nothing = Version(made.decision, made.known)
    with pytest.raises(ToodError, match="at least one set of unknown samples, or traffic"):
        compare(nothing, nothing)
    ids = {"known": np.zeros(1800), "far": np.arange(1800)}
    twice = Version(made.decision, made.known, made.unknown, ids=ids)
    with pytest.raises(ToodError, match="each id once"):
        compare(twice, twice)
    named = [Version(made.decision, made.known, made.unknown, classes=names) for names in (NAMES[:4], list("wxyz"))]
    with pytest.raises(ToodError, match="share no name"):
        compare(*named)


def test_a_decision_of_another_model_is_refused():
    made = version()
    other = Outputs(made.known.logits * 3 + 20, labels=made.known.labels)
    with pytest.raises(ToodError, match="another model"):
        Version(made.decision, other, made.unknown)


def test_the_command_gives_the_exit_code_and_every_format(tmp_path):
    old = write(tmp_path / "old", version(classes=NAMES[:4]), ids=np.arange(1800))
    new = write(tmp_path / "new", version(1, unknown=4.0, classes=["cat", "dog", "<b>|`", "owl"]), ids=np.arange(1800))
    formats = [f"--{name}={tmp_path / name}" for name in ("junit", "markdown", "html")]
    summary = {"GITHUB_STEP_SUMMARY": str(tmp_path / "summary"), "PATH": ""}
    result = processes.tood("gate", old, new, *formats, "--github", env=summary)
    assert result.returncode == 3, result.stderr
    assert result.stdout.startswith("Do not ship: unknown rejected (far)")
    assert "::error title=tood gate::Do not ship" in result.stdout and "100.0%25" in result.stdout
    suite = ET.fromstring((tmp_path / "junit").read_text())
    assert suite.get("failures") == str(len(suite.findall("testcase/failure"))) != "0"
    page = (tmp_path / "html").read_text()
    assert "<h1>Do not ship" in page and "http" not in page
    assert (tmp_path / "summary").read_text() == (tmp_path / "markdown").read_text()
    assert "**Do not ship" in (tmp_path / "summary").read_text()
    result = processes.tood("gate", old, old, "--json")
    found = json.loads(result.stdout)
    assert (result.returncode, found["verdict"]) == (0, "ship")
    assert {"changes", "tasks", "classes", "ways", "now_rejected"} <= set(found)
    result = processes.tood("gate", old, new, "--max-loss", "99", "--task-loss", "99")
    assert result.returncode == 0
    small = write(tmp_path / "small", version(2, n=200))
    other = write(tmp_path / "other", version(3, n=200))
    result = processes.tood("gate", small, other)
    assert result.returncode == 4 and re.search(r"about [\d,]+ more samples of known", result.stdout)
    result = processes.tood("gate", old, tmp_path / "none")
    assert result.returncode == 1 and "no such file" in result.stderr


def test_names_in_files_cannot_break_a_page_or_a_table():
    gate = compare(*(version(seed, classes=["cat", "dog", "<script>|\n::error::", "owl"]) for seed in (0, 1)))
    assert "<script>" not in render.html(gate) and "&lt;script&gt;" in render.html(gate)
    table = [line for line in render.markdown(gate).splitlines() if line.startswith("|")]
    assert {len(re.findall(r"(?<!\\)\|", line)) for line in table} == {8}
    assert all(line.startswith("::") for line in render.github(gate).splitlines())


def test_files_have_the_layout_of_a_step_of_a_run(tmp_path):
    folder = write(tmp_path / "steps" / "05" / "outputs", version())
    (folder / "decision.safetensors").rename(folder.parent / "decision.safetensors")
    write_manifest(tmp_path, TASKS, far=["far"], classes=NAMES)
    found = read_version(folder.parent)
    assert found.classes == NAMES[:4] and set(found.sets) == {"known", "far"}
    assert found.calibration is not None
    np.savez(folder / "ood" / "traffic.npz", logits=np.zeros((3, 4)))
    with pytest.raises(ToodError, match="may be named traffic"):
        read_version(folder.parent)
    (folder / "ood" / "traffic.npz").unlink()
    np.savez(folder / "test.npz", logits=np.zeros((3, 4)), labels=np.zeros(2, dtype=int))
    with pytest.raises(ToodError, match="as many rows"):
        read_version(folder.parent)


@pytest.mark.parametrize(("file", "codes"), [(".github/workflows/gate.yml", (0, 3)), (".gitlab-ci.yml", (0, 3))])
def test_the_recipes_for_ci_run_with_the_files_of_a_ci_run(file, codes, tmp_path):
    """The command of each recipe, in a folder as a CI job finds it; the recipes are YAML of at most 12 lines."""
    yaml = pytest.importorskip("yaml")
    page = (ROOT / "docs" / "how-to" / "gate.md").read_text()
    recipe = re.search(rf'^```yaml title="{re.escape(file)}"\n(.*?)^```', page, re.MULTILINE | re.DOTALL)[1]
    assert yaml.safe_load(recipe) and len(recipe.splitlines()) <= 12
    command = re.search(r"tood (gate .*)", recipe)[1].split()
    write(tmp_path / "versions" / "old", version())
    for seed, (unknown, code) in enumerate(zip((0.0, 4.0), codes, strict=True)):
        write(tmp_path / f"new{seed}", version(0, unknown=unknown)).rename(tmp_path / "versions" / "new")
        result = processes.tood(*command, cwd=tmp_path)
        assert result.returncode == code, result.stdout + result.stderr
        assert (tmp_path / "gate.html").exists()
        (tmp_path / "versions" / "new").rename(tmp_path / f"done{seed}")


def test_the_page_next_month_runs_from_start_to_end(tmp_path, monkeypatch):
    """Python and commands of the page, in their order; every command succeeds, and the next version may ship."""
    page = (ROOT / "docs" / "how-to" / "next-month.md").read_text()
    monkeypatch.chdir(tmp_path)
    namespace, printed = {}, {}
    for kind, code in re.findall(r"^```(python|bash)\n(.*?)^```", page, re.MULTILINE | re.DOTALL):
        if kind == "python":
            exec(code, namespace)
            continue
        for line in code.replace("\\\n", "").splitlines():
            result = processes.tood(*shlex.split(line)[1:])
            assert result.returncode == 0, f"{line}\n{result.stdout}{result.stderr}"
            printed.setdefault(shlex.split(line)[1], []).append(result.stdout)
    assert printed["gate"][0].startswith("Ship") and "another parent" not in printed["gate"][0]
    assert re.search(r"Note: new classes, .*: accuracy \d+.\d%, \d.\d% of 2,000 samples rejected", printed["gate"][0])
    assert re.search(
        r"metadata +parent versions/5/decision.safetensors, parent_sha256 [0-9a-f]{64}", printed["inspect"][0]
    )
    again = processes.tood("gate", "versions/6", "versions/6")
    assert "names another parent than OLD" in again.stdout


def test_a_detector_of_features_is_compared_as_deployed(tmp_path):
    rng = np.random.default_rng(0)
    labels = np.arange(600) % 4

    def outputs(signal):
        features = signal * np.eye(4)[labels] + rng.normal(size=(600, 4))
        return Outputs(features, features, labels)

    detector = detectors.create("mds").fit(outputs(6), partition=TASKS[:2])
    decision = Conformal(detector).fit(outputs(6))
    known, unknown = outputs(6), {"far": outputs(0)}
    gate = compare(Version(decision, known, unknown), Version(decision, known, {"far": outputs(6)}))
    assert gate.verdict == "block" and gate.judged.changes[1].gain >= 0
    (tmp_path / "ood").mkdir()
    decision.save(tmp_path / "decision.safetensors")
    for name, rows in (("test", known), ("ood/far", unknown["far"])):
        np.savez(tmp_path / name, logits=rows.logits, features=rows.features, labels=rows.labels)
    again = compare(read_version(tmp_path), read_version(tmp_path))
    assert [change.old for change in again.judged.changes] == [change.old for change in gate.judged.changes]


def test_the_way_that_is_deployed_is_judged_as_the_version_is():
    old = version(threshold=1.0)
    new = version(1, signal=5.0, threshold=1.0)
    gate = compare(old, new)
    assert gate.ways[0].judged == gate.judged


def test_samples_of_classes_that_neither_version_has_learned_are_unknown(tmp_path):
    """Labels beyond the columns; OLD lacks the classes of task 2, and nobody knows class 6."""
    rng = np.random.default_rng(0)
    labels = np.arange(2100) % 7
    for name, columns in (("old", 4), ("new", 6)):
        made = version(tasks=columns // 2)
        folder = write(tmp_path / name, made)
        (folder / "ood" / "far.npz").unlink()
        logits = 7 * np.eye(7)[labels][:, :columns] + rng.normal(size=(2100, columns))
        np.savez(folder / "test.npz", logits=logits, labels=labels, ids=np.arange(2100))
    gate = compare(*(read_version(tmp_path / name) for name in ("old", "new")))
    change = next(change for change in gate.judged.changes if change.name == "unknown rejected")
    assert (change.of, change.samples) == ("future", 300) and change.old > 0.95 < change.new
