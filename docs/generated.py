"""MkDocs hook and griffe extension: tables generated from the code, and docstrings as they should look on a page.

A page holds a line ``<!-- generated: NAME -->``. NAME is a key of :data:`GENERATORS`. What is between it and
``<!-- end -->`` is for readers of the repository: ``python -m docs.generated`` fills it. The site is always made anew.
"""

from __future__ import annotations

import importlib
import inspect
import re
import sys
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import MISSING, Field, fields
from pathlib import Path
from typing import Any, Literal, get_args, get_origin, get_type_hints

import click
import griffe

REFERENCE = Path(__file__).parent / "reference"
MARKER = re.compile(r"^<!-- generated: ([a-z_]+) -->$(?:\n(?:(?!^<!-- generated: ).*\n)*?<!-- end -->$)?", re.MULTILINE)
FILLED = re.compile(r"^(<!-- generated: ([a-z_]+) -->)\n(?:.*\n)*?(<!-- end -->)$", re.MULTILINE)
# Sphinx roles of docstrings, as MkDocs renders them: the role's name, then the target as code.
ROLE = re.compile(r":(?:attr|class|data|exc|func|meth|mod):<code>(?:([\w.]+) &lt;)?~?([\w.]+)(?:&gt;)?</code>")
EXAMPLE = re.compile(r"(?:[\w ]+: )?((?:\w+ \| )?(?:tood|printf) .+)")  # a line of help that is a command
PARAMETER = re.compile(r"^(\w+(?:, \w+)*):$")
DOCTEST = re.compile(r"^>>> .*?(?=\n\n|\Z)", re.MULTILINE | re.DOTALL)
JOINT = re.compile(r"^(\w+(?:, \w+)+):\n((?: {4}.+(?:\n|\Z))+)", re.MULTILINE)  # "a, b:" and its indented text


class Docstrings(griffe.Extension):
    """Prepares docstrings for the page."""

    def on_object(self, *, obj: griffe.Object, **_: Any) -> None:
        """Fence doctests without a heading, and describe each of several parameters with its own type and default."""
        if obj.docstring:
            text = obj.docstring.value
            if "Examples\n---" not in text:  # Markdown would read >>> as a quotation
                text = DOCTEST.sub(r"```pycon\n\g<0>\n```", text)
            obj.docstring.value = JOINT.sub(_separate, text)


def _separate(joint: re.Match[str]) -> str:
    return "\n".join(f"{name}:\n{joint[2]}" for name in joint[1].split(", "))


def on_page_markdown(markdown: str, **_: Any) -> str:
    """Replace each marker of a page by what its generator returns."""
    return MARKER.sub(lambda match: GENERATORS[match[1]](), markdown)


def filled(page: Path) -> str:
    """The text of a page, with what its generators return between their markers."""
    return FILLED.sub(lambda match: f"{match[1]}\n\n{GENERATORS[match[2]]().strip()}\n\n{match[3]}", page.read_text())


def on_page_content(html: str, **_: Any) -> str:
    """Turn docstring roles such as ``:func:`tood.energy``` into cross references."""
    return ROLE.sub(_reference, html)


def _reference(role: re.Match[str]) -> str:
    shown, target = role.groups()
    code = f"<code>{shown or target.removeprefix('tood.')}</code>"
    return f'<autoref identifier="{target}" optional>{code}</autoref>' if target.startswith("tood.") else code


def command_line() -> str:
    """Every command with its usage, arguments, options and examples, from click."""
    from tood.cli import cli

    return "\n".join(_command(click.Context(cli, info_name="tood"), cli))


def _command(ctx: click.Context, command: click.Command) -> Iterator[str]:
    yield f"## `{ctx.command_path}`\n"
    text, examples = _help(command)
    yield f"{text}\n"
    usage = " ".join(command.collect_usage_pieces(ctx))
    yield f"```console\n{ctx.command_path} {usage}\n```\n"
    options = [p for p in command.get_params(ctx) if isinstance(p, click.Option) and "--help" not in p.opts]
    if rows := [record for option in options if (record := option.get_help_record(ctx))]:
        cells = [(f"`{names}`", meaning.replace("[", "\\[")) for names, meaning in rows]  # [x] is a reference otherwise
        yield _table(("option", "meaning"), cells) + "\n"
    if examples:
        yield f"Examples:\n\n```console\n{examples}\n```\n"
    if isinstance(command, click.Group):
        for name in command.list_commands(ctx):
            if (child := command.get_command(ctx, name)) is not None and not child.hidden:
                yield from _command(click.Context(child, parent=ctx, info_name=name), child)


def _help(command: click.Command) -> tuple[str, str]:
    """The help text of a command without its examples, and the examples, one command per line."""
    prose, examples = [], []
    for line in (command.help or "").replace("\b", "").splitlines():
        if example := EXAMPLE.match(line.strip()):
            examples.append(example[1])
        elif not line.strip().startswith("Example"):
            prose.append(line.strip())
    return re.sub(r"\n{3,}", "\n\n", "\n".join(prose)).strip(), "\n".join(map(_narrow, examples))


def _narrow(example: str) -> str:
    """A command in lines of at most 78 columns, broken before options."""
    lines = [""]
    for part in re.split(r" (?=--|\| )", example):
        if len(lines[-1]) + len(part) > 75:
            lines.append(f"    {part}")
        else:
            lines[-1] = f"{lines[-1]} {part}" if lines[-1] else part
    return " \\\n".join(lines)


def detectors() -> str:
    """The detectors: what each scores by, what it needs, the set it is fitted on, and its settings."""
    from tood import detectors as registry

    rows = []
    for name, detector in registry.classes().items():
        score = f"**{detector.title}.** {_summary(detector)}<br><small>{detector.citation}</small>"
        settings = "<br>".join(f"`{key}={default}`" for key, default in detector.parameters.items())
        fitted = {"none": "–", "fit": "fit set", "calibration": "calibration set"}[detector.fits_on]
        rows.append((f"`{name}`", score, ", ".join(sorted(detector.needs)), fitted, settings))
    return _table(("name", "score", "needs", "fitted on", "settings"), rows)


def learner_settings() -> str:
    """The settings that all learners share, then per learner those that it adds or whose default differs."""
    from tood import learners as registry
    from tood.learners.ber import BERSettings
    from tood.learners.settings import Settings, settings_class

    text = [f"## Settings of every learner\n\n{_settings_table(Settings, fields(Settings))}\n"]
    common = {f.name: f.default for f in fields(Settings)}
    for name, learner in sorted(registry.LEARNERS.items()):
        kind = settings_class(learner)
        own = [f for f in fields(kind) if f.name not in common or f.default != common[f.name]]
        table = _settings_table(kind, own) if own else "No settings of its own."
        text.append(f"## `{name}`\n\n{_summary(learner)}\n\n{table}\n")
    text.append("## `+ber`\n\nAppended to a learner's name (`icarl+ber`), BER trains a second head that only scores.\n")
    text.append(_settings_table(BERSettings, fields(BERSettings), prefix="ber_"))
    return "\n".join(text)


def presets() -> str:
    """The YAML file of every preset."""
    from importlib.resources import files

    from tood.learners.preset_files import presets as names

    folder = files("tood.learners") / "presets"
    return "\n".join(
        f"### `{name}`\n\n```yaml\n{(folder / f'{name}.yaml').read_text(encoding='utf-8')}```\n" for name in names()
    )


def streams() -> str:
    """The named streams: tasks, image size, OOD sets."""
    from tood.streams.catalog import CATALOG

    rows = [("`digits`", "4", "8", "`eight_nine`", "`photographs`, `noise`", "comes with scikit-learn")]
    rows += [("`clinc150`", "15", "384 numbers", "`out_of_scope`", "", "`clinc150-minilm.npz`: sentence embeddings")]
    for name, entry in CATALOG.items():
        near, far = (", ".join(f"`{s}`" for s in sets) for sets in (entry.near, entry.far))
        rows.append((f"`{name}`", str(entry.tasks), str(entry.size), near, far, "`tood data check`"))
    return _table(("name", "tasks", "pixels per side", "near-OOD", "far-OOD", "images"), rows)


def networks() -> str:
    """The names that ``network:`` accepts."""
    from tood import models

    return ", ".join(f"`{name}`" for name in models.names())


def names() -> str:
    """Every name that a page of the reference describes: its parameters, its first sentence, and its methods."""
    pages = "".join(page.read_text() for page in REFERENCE.glob("*.md"))
    described = re.findall(r"^::: ([\w.]+)$", pages, re.MULTILINE)
    lines = []
    for path in sorted({path for path in described if not path.startswith("tood.integrations")}):
        found = _resolve(path)
        if inspect.ismodule(found):
            own = [
                n for n, one in vars(found).items() if n[0] != "_" and getattr(one, "__module__", "") == found.__name__
            ]
            members = {name: getattr(found, name) for name in sorted(getattr(found, "__all__", own))}
            lines += [_name(f"{path}.{name}", one) for name, one in members.items() if inspect.isroutine(one)]
            lines += [_name(f"{path}.{name}", one) for name, one in members.items() if inspect.isclass(one)]
        else:
            lines.append(_name(path, found))
    return "\n".join(lines)


def _resolve(path: str) -> Any:
    """A module, class or function; the function where a folder has the same name."""
    head, _, name = path.rpartition(".")
    with suppress(ImportError):
        if hasattr(importlib.import_module(head), name):
            return getattr(importlib.import_module(head), name)
    return importlib.import_module(path)


def _name(path: str, found: Any) -> str:
    parameters = []
    error = inspect.isclass(found) and issubclass(found, Exception)
    for name, one in () if error else inspect.signature(found).parameters.items():
        plain = isinstance(one.default, str | int | float | tuple | None)
        default = "" if one.default is one.empty else f"={one.default!r}" if plain else "=…"
        parameters.append({one.VAR_POSITIONAL: "*", one.VAR_KEYWORD: "**"}.get(one.kind, "") + name + default)
    own = [name for name, value in vars(found).items() if name[0] != "_" and callable(getattr(found, name))]
    text = re.sub(r":\w+:`~?([\w.]+)`", r"`\1`", _summary(found))
    methods = f" Methods: {', '.join(f'`{name}`' for name in own)}." if inspect.isclass(found) and own else ""
    return f"- `{path}({', '.join(parameters)})`: {text.rstrip('.')}.{methods}"


def _settings_table(kind: Any, shown: Sequence[Field[Any]], prefix: str = "") -> str:
    """Fields of a settings dataclass as a table; the meaning comes from the docstring that describes the field."""
    hints = get_type_hints(kind)
    described: dict[str, str] = {}
    for base in reversed(kind.__mro__):
        described |= _parameters(base)
    rows = [(f"`{prefix}{f.name}`", _type(hints[f.name]), f"`{_default(f)}`", described.get(f.name, "")) for f in shown]
    return _table(("setting", "type", "default", "meaning"), rows)


def _default(field: Field[Any]) -> Any:
    value = field.default if field.default is not MISSING else field.default_factory()  # type: ignore[misc]
    return list(value) if isinstance(value, tuple) else value


def _type(hint: Any) -> str:
    if get_origin(hint) is Literal:
        return " or ".join(f"`{value}`" for value in get_args(hint))
    if get_origin(hint) is tuple:
        return f"list of {get_args(hint)[0].__name__}"
    return getattr(hint, "__name__", str(hint))


def _parameters(kind: type) -> dict[str, str]:
    """What the Parameters section of a NumPy-style docstring says of each name."""
    described: dict[str, str] = {}
    names: list[str] = []
    for line in (kind.__doc__ or "").partition("----------\n")[2].splitlines():
        if match := PARAMETER.match(line.strip()):
            names = match[1].split(", ")
            described |= dict.fromkeys(names, "")
        else:
            described |= {name: f"{described[name]} {line.strip()}".strip() for name in names}
    return described


def _summary(kind: type) -> str:
    return (kind.__doc__ or "").partition("\n\n")[0].replace("\n", " ").strip()


def _table(head: tuple[str, ...], rows: list[tuple[str, ...]]) -> str:
    lines = [head, tuple("---" for _ in head), *rows]
    # Plain code quotes, and no character that would end a cell.
    clean = [[re.sub(r"\s+", " ", cell.replace("``", "`").replace("|", "∣")) for cell in line] for line in lines]
    return "\n".join(f"| {' | '.join(line)} |" for line in clean)


GENERATORS = {f.__name__: f for f in (command_line, detectors, learner_settings, names, presets, streams, networks)}

if __name__ == "__main__":
    for page in REFERENCE.glob("*.md"):
        text = filled(page)
        if "--check" in sys.argv and text != page.read_text():
            sys.exit(f"{page.name} is not what the code says: python -m docs.generated")
        page.write_text(text)
