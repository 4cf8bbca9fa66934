"""OOD metrics as torchmetrics: equal to tood.metrics, in one process and in two."""

from __future__ import annotations

import contextlib

import numpy as np
import pytest
import torch
import torch.multiprocessing
from benchmarks.peers import import_torchvision
from tests.processes import METHOD

from tood import metrics
from tood.errors import ToodError

with contextlib.suppress(ImportError):  # torchmetrics imports torchvision if it is installed
    import_torchvision()
pytest.importorskip("torchmetrics")

from tood.integrations.torchmetrics import AUROC, AUPRIn, AUPROut, FPRAtIDRecall, FPRAtOODRecall

PAIRS = [
    (AUROC(), metrics.auroc),
    (FPRAtIDRecall(), metrics.fpr_at_id_recall),
    (FPRAtOODRecall(recall=0.9), lambda a, b: metrics.fpr_at_ood_recall(a, b, recall=0.9)),
    (AUPRIn(), metrics.aupr_in),
    (AUPROut(method="trapezoid"), lambda a, b: metrics.aupr_out(a, b, method="trapezoid")),
]


def energies(seed=0, rows=500):
    """Energies around 30, with ties; most are 1 after a sigmoid in float32."""
    rng = np.random.default_rng(seed)
    scores = np.concatenate([rng.normal(32, 1, rows), rng.normal(30, 1, rows)]).round(2).astype(np.float32)
    order = rng.permutation(2 * rows)
    return scores[order], (np.arange(2 * rows) < rows)[order]


@pytest.mark.parametrize(("metric", "function"), PAIRS, ids=lambda x: getattr(x, "__name__", type(x).__name__))
def test_equal_to_the_function_whatever_the_batches(metric, function):
    scores, inside = energies()
    metric.reset()
    for part in np.array_split(np.arange(len(scores)), 7):
        metric.update(torch.from_numpy(scores[part]), torch.from_numpy(inside[part]))
    assert float(metric.compute()) == function(scores[inside], scores[~inside])
    metric.reset()
    metric.update(torch.from_numpy(scores[inside]), True)
    metric.update(torch.from_numpy(scores[~inside]), False)
    assert float(metric.compute()) == function(scores[inside], scores[~inside])


def test_torchmetrics_own_loses_the_energies():
    """Why these classes exist."""
    from torchmetrics.classification import BinaryAUROC

    scores, inside = energies()
    own = BinaryAUROC()(torch.from_numpy(scores), torch.from_numpy(inside).long())
    assert float(own) < 0.6 < 0.9 < metrics.auroc(scores[inside], scores[~inside])


def _process(rank, folder, cut, dtypes):
    torch.distributed.init_process_group("gloo", init_method=f"file://{folder}/store", rank=rank, world_size=2)
    scores, inside = energies()
    part = slice(0, cut) if rank == 0 else slice(cut, None)
    found = []
    for metric, _ in PAIRS:
        if len(scores[part]):
            metric.update(torch.from_numpy(scores[part]).to(dtypes[rank]), torch.from_numpy(inside[part]))
        found.append(float(metric.compute()))
    np.save(f"{folder}/{rank}.npy", found)
    torch.distributed.destroy_process_group()


@pytest.mark.parametrize("cut", [300, 1000])  # of 1,000: then the second process has no sample at all
@pytest.mark.parametrize("dtypes", [(torch.float32, torch.float32), (torch.float64, torch.float32)])
def test_two_processes_compute_what_one_does(tmp_path, cut, dtypes):
    torch.multiprocessing.start_processes(_process, (str(tmp_path), cut, dtypes), nprocs=2, start_method=METHOD)
    scores, inside = energies()
    expected = [function(scores[inside], scores[~inside]) for _, function in PAIRS]
    for rank in range(2):
        assert np.load(tmp_path / f"{rank}.npy").tolist() == expected


def test_marks_of_id_samples_are_bools_or_zeros_and_ones():
    scores, inside = energies()
    metric = AUROC()
    metric.update(torch.from_numpy(scores), torch.from_numpy(inside).long())
    assert float(metric.compute()) == metrics.auroc(scores[inside], scores[~inside])
    wrong = [torch.tensor([0, -1, 0]), torch.tensor([0.2, 0.9, 1.0]), torch.ones(2, dtype=torch.bool)]
    for marks in wrong:  # such as labels, where -1 marks OOD
        with pytest.raises(ToodError, match="in_distribution: expected true or 1 for ID, false or 0 for OOD"):
            metric.update(torch.zeros(3), marks)
    for other in (torch.tensor([float("nan")]), torch.zeros(2, 2), [0.5]):
        with pytest.raises(ToodError, match="scores: expected a tensor"):
            metric.update(other, True)
    with pytest.raises(ToodError, match="scores: none yet"):
        AUROC().compute()
