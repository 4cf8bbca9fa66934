"""Devices, precision and data-parallel processes."""

from __future__ import annotations

import atexit
import inspect
import os
from datetime import timedelta
from typing import Any

import torch
from lightning_fabric import Fabric
from lightning_fabric.plugins.environments.lightning import LightningEnvironment
from lightning_fabric.plugins.environments.torchelastic import TorchElasticEnvironment
from lightning_fabric.strategies.ddp import DDPStrategy
from torch.nn.parallel import DistributedDataParallel

from tood.errors import ToodError, UnknownNameError
from tood.models.memory import keep_freed_memory

__all__ = ["check_device", "start"]

DEVICES = ("auto", "cpu", "cuda", "mps")
PRECISIONS = ("auto", "32-true", "bf16-mixed", "16-mixed")


def check_device(device: str, precision: str) -> None:
    """Raise unless both are known names; whether this machine has the device is not checked."""
    if device not in DEVICES:
        raise UnknownNameError("device", device, DEVICES)
    if precision not in PRECISIONS:
        raise UnknownNameError("precision", precision, PRECISIONS)


def start(device: str = "auto", precision: str = "auto") -> Fabric:
    """Lightning Fabric on one device, or on one per process under ``torchrun``.

    ``torchrun --nproc-per-node 2 train.py`` trains data-parallel: each process gets its share of every batch, gradients
    are averaged, and networks and memories stay the same in all of them. Only the first process writes.

    Parameters
    ----------
    device:
        ``"auto"`` (a GPU if there is one), ``"cpu"``, ``"cuda"`` or ``"mps"``.
    precision:
        ``"32-true"``, ``"bf16-mixed"``, ``"16-mixed"`` (both for GPUs; the second scales the loss, for GPUs without
        bfloat16) or ``"auto"``: bf16-mixed on a GPU that supports it.
    """
    check_device(device, precision)
    available = {"cuda": torch.cuda.is_available(), "mps": torch.backends.mps.is_available()}
    if not available.get(device, True):
        raise ToodError(f"device: {device!r} was asked for, but torch finds no such device; use 'cpu' or 'auto'")
    if device == "auto":
        device = "cuda" if torch.cuda.is_available() else "cpu"
    if precision.endswith("mixed") and device != "cuda":
        raise ToodError(f"precision: {precision} is for GPUs, found the device {device!r}")
    if precision == "auto":
        mixed = device == "cuda" and torch.cuda.is_bf16_supported(including_emulation=False)
        precision = "bf16-mixed" if mixed else "32-true"
    world = int(os.environ.get("WORLD_SIZE", 1))
    local = int(os.environ.get("LOCAL_WORLD_SIZE", world))
    strategy: Any = "auto"
    if world > 1:
        # DDP must not copy buffers: the loop averages them, as a network may run twice per step.
        known = inspect.signature(DistributedDataParallel).parameters
        option = "forward_sync_buffers" if "forward_sync_buffers" in known else "broadcast_buffers"
        # The other processes wait while the first one evaluates a step.
        options: dict[str, Any] = {option: False}
        strategy = DDPStrategy(timeout=timedelta(days=7), **options)
    # Fabric would take the variables of a Slurm job for a plan to train in several processes.
    environment = TorchElasticEnvironment() if TorchElasticEnvironment.detect() else LightningEnvironment()
    fabric = Fabric(
        accelerator=device,
        plugins=[environment],
        devices=local,
        num_nodes=world // local,
        strategy=strategy,
        precision=precision,  # type: ignore[arg-type]
    )
    fabric.launch()
    if world > 1:  # gloo threads that outlive the process group abort the process
        atexit.register(torch.distributed.destroy_process_group)
    if device == "cpu":
        keep_freed_memory()
    return fabric
