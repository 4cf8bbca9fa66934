"""YAML files: what is not plain text, numbers, lists and mappings is refused with one sentence."""

import pytest

from tood import ToodError
from tood.runs.config import RunConfig
from tood.storage.yaml_files import parse_settings, read_yaml

BOMB = "a: &a [x, x, x, x, x, x, x, x, x]\n" + "\n".join(
    f"{name}: &{name} [{', '.join([f'*{before}'] * 9)}]" for before, name in zip("abcdefgh", "bcdefghi", strict=True)
)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("seed: 2020-01-01", "found datetime.date"),
        ("learner: !!binary aGk=", "found b'hi'"),
        ("learner: !!set {a, b}", "expected text, a number, a list or a mapping"),
        ("settings: {1: 2}", "expected text as a key, found 1"),
        ("a: &a [*a]", "inside each other"),
        (BOMB, "more than 100000 values"),
        ("a: " + "[" * 60 + "]" * 60, "inside each other"),
        ("a: " + "[" * 5000, "cannot be read as YAML"),
    ],
)
def test_what_is_not_plain_is_refused(tmp_path, text, message):
    (tmp_path / "run.yaml").write_text(text)
    with pytest.raises(ToodError, match=message) as caught:
        read_yaml(tmp_path / "run.yaml")
    assert "run.yaml: cannot be read as YAML" in str(caught.value) and "\n" not in str(caught.value)


@pytest.mark.parametrize("values", [{"preset": ["x"]}, {"seed": 10**26}, {"order": 10**26}, {"settings": [1]}])
def test_settings_of_another_kind_are_refused(values):
    with pytest.raises(ToodError, match=f"{next(iter(values))}: expected"):
        RunConfig.from_mapping(values)


def test_settings_on_the_command_line_are_plain():
    with pytest.raises(ToodError, match="--set 'epochs=2020-01-01'"):
        parse_settings(("epochs=2020-01-01",))
