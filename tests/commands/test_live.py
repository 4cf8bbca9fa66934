"""What is shown while a network trains: on a terminal, in a file, or not at all."""

import re

import pytest

from tood.commands import _training as live
from tood.learners import Progress

HALF_WAY = Progress(
    task=1,
    epoch=0,
    epochs=3,
    step=5,
    steps=10,
    loss=0.25,
    accuracy=0.5,
    lr=0.1,
    samples_per_second=80.4,
    seconds_left=61.0,
)
LINE = "task 2  epoch 1/3  training loss 0.250  training accuracy 50.0  80 samples/s  0:01:01 left"


@pytest.mark.parametrize(("every", "shown"), [(0.0, 2), (60.0, 0)])
def test_a_plain_line_now_and_then_where_there_is_no_terminal(capsys, monkeypatch, every, shown):
    monkeypatch.setattr(live, "EVERY", every)
    with live.training_progress() as (progress, say):
        progress(HALF_WAY)
        progress(HALF_WAY)
        say("step 1/5  [as it is]")
    assert capsys.readouterr().out.splitlines() == [LINE] * shown + ["step 1/5  [as it is]"]


def test_a_bar_on_a_terminal_that_leaves_only_lines_behind(capsys, monkeypatch):
    monkeypatch.setenv("FORCE_COLOR", "1")
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("COLUMNS", "120")
    with live.training_progress() as (progress, say):
        progress(HALF_WAY)
        say("step 1/5  [as it is]")
    plain = re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", capsys.readouterr().out)
    assert LINE in plain and "━" in plain
    assert "step 1/5  [as it is]" in plain


def test_quiet_prints_nothing(capsys):
    with live.training_progress(quiet=True) as (progress, say):
        progress(HALF_WAY)
        say("a line")
    assert capsys.readouterr().out == ""
