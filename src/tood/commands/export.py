"""``tood export``: a saved score, with its decision, as an ONNX graph or a torch program."""

from __future__ import annotations

from pathlib import Path

import click

from tood.commands._console import FILE, SHARE


@click.command()
@click.argument("file", type=FILE)
@click.option("--onnx", type=FILE, help="The .onnx file to write.")
@click.option("--torch", "program", type=FILE, help="The .pt2 file to write, for torch.export.load.")
@click.option("--alpha", type=SHARE, help="Also decide: reject at most this share of known inputs.")
def command(file: Path, onnx: Path | None, program: Path | None, alpha: float | None) -> None:
    """Write a calibrator or a conformal decision as an ONNX graph or a torch program; the batch size stays free.

    Example: tood export cal.safetensors --onnx scorer.onnx --alpha 0.05
    """
    from tood.decision.facts import load_decision

    if (onnx is None) == (program is None):
        raise click.UsageError("give one of --onnx and --torch")
    scorer = load_decision(file)
    if onnx is not None:
        from tood.export.onnx import export_scorer

        export_scorer(scorer, onnx, alpha=alpha)
    elif program is not None:
        from tood.export.module import export_program

        export_program(scorer, program, alpha=alpha)
    click.echo(f"{onnx or program}: written from {file}")
