"""Names of built-in, registered, installed and imported items."""

from __future__ import annotations

import sys

import pytest

from tood.errors import ToodError, UnknownNameError
from tood.registry import Registry


class Base:
    name: str


class Known(Base):
    name = "known"


@pytest.fixture
def registry():
    made = Registry("thing", "tood.things", Base)
    made.register(Known)
    return made


@pytest.fixture
def package(tmp_path, monkeypatch):
    """Write modules that can be imported from the current directory, as beside a console script."""
    before = set(sys.modules)
    monkeypatch.setattr(sys, "path", [entry for entry in sys.path if entry])
    monkeypatch.chdir(tmp_path)

    def write(name, text):
        (tmp_path / f"{name}.py").write_text(text)

    yield write
    for name in set(sys.modules) - before:
        del sys.modules[name]


OTHER = "from tests.test_registry import Base\nclass Other(Base):\n    name = 'other'\n"


def test_built_in_and_registered(registry):
    @registry.register
    class Mine(Base):
        name = "mine"

    assert registry.names() == ["known", "mine"]
    assert registry.get("mine") is registry.known("mine") is Mine
    assert registry.known("other") is None


def test_a_factory_has_the_name_it_is_registered_under():
    factories = Registry("stream", "tood.streams")
    made = factories.register("squares")(lambda tasks: [i * i for i in range(tasks)])
    assert factories.get("squares") is made


def test_nearest_name(registry):
    with pytest.raises(UnknownNameError, match="unknown thing 'knwon'; did you mean 'known'"):
        registry.get("knwon")
    with pytest.raises(ToodError, match=r"write 'my_package\.things:Thing'"):
        registry.get("my_package.things.Thing")
    with pytest.raises(ToodError, match=r"thing: expected a name .* found 3"):
        registry.get(3)


def test_a_path_is_imported_from_the_current_directory_and_registered(registry, package):
    package("mine", OTHER)
    other = registry.get("mine:Other")
    assert other.name == "other"
    assert registry.get("other") is other
    assert registry.names() == ["known", "other"]


def test_a_factory_by_path(package):
    package("mine", "def squares(tasks):\n    return [i * i for i in range(tasks)]\n")
    factories = Registry("stream", "tood.streams")
    assert factories.get("mine:squares")(3) == [0, 1, 4]
    assert factories.names() == []


@pytest.mark.parametrize(
    ("path", "message"),
    [
        (
            "absent.things:Thing",
            "No module named 'absent' (searched: installed packages, /",
        ),
        ("mine.deeper:Thing", "No module named 'mine.deeper'"),
        ("mine:Othr", "unknown attribute of mine in thing 'mine:Othr' 'Othr'; did you mean 'Other'"),
        ("mine:number", "expected a subclass of tests.test_registry:Base, found 3"),
        ("mine:Stranger", "expected a subclass of tests.test_registry:Base, found <class 'mine.Stranger'>"),
        ("mine:Nameless", 'expected a class attribute name = "..."'),
        ("mine:Known", "'known': tests.test_registry:Known has this name already; give mine:Known another one"),
        ("mine:Odd", "name of mine:Odd: expected letters, digits"),
        ("broken:Thing", "importing broken failed: ZeroDivisionError: division by zero"),
        ("needs_more:Thing", "importing needs_more failed: ModuleNotFoundError: No module named 'not_installed'"),
        ("mine:", "expected 'package.module:Attribute'"),
        ("mine:a:b", "expected 'package.module:Attribute'"),
        ("../mine:Other", "expected 'package.module:Attribute'"),
    ],
)
def test_what_can_be_wrong_with_a_path(registry, package, path, message):
    package("mine", OTHER + "number = 3\nclass Stranger: pass\nclass Nameless(Base): pass\n")
    with open("mine.py", "a") as file:
        file.write("class Known(Base):\n    name = 'known'\nclass Odd(Base):\n    name = 'a/b'\n")
    package("broken", "1 / 0")
    package("needs_more", "import not_installed")
    with pytest.raises(ToodError) as caught:
        registry.get(path)
    assert message in str(caught.value)
    assert registry.names() == ["known"]


def test_the_same_class_again_replaces_a_different_one_is_refused(registry):
    for _ in range(2):  # a notebook cell that is run twice

        @registry.register
        class Mine(Base):
            name = "mine"

    assert registry.get("mine") is Mine
    with pytest.raises(ToodError, match=r"'mine': .*Mine has this name already; give .*Theirs another one"):

        @registry.register
        class Theirs(Base):
            name = "mine"


def test_an_entry_point_is_listed_without_being_imported(registry, install):
    install("their_package", OTHER, {"other": "their_package:Other"})
    assert registry.names() == ["known", "other"]
    assert registry.known("other") is None
    assert "their_package" not in sys.modules
    assert registry.get("other").name == "other"
    assert registry.names() == ["known", "other"]


def test_what_can_be_wrong_with_an_entry_point(registry, install):
    install("their_package", OTHER, {"second": "their_package:Other", "gone": "their_package:Gone"})
    install("third_package", "1 / 0", {"third": "third_package:Third"})
    install("fourth_package", OTHER, {"third": "fourth_package:Other"})
    install("fifth_package", "1 / 0", {"fifth": "fifth_package:Fifth"})
    assert registry.names() == ["known", "fifth", "gone", "second", "third"]
    with pytest.raises(ToodError, match="loading fifth_package:Fifth of the package fifth_package failed: ZeroDiv"):
        registry.get("fifth")
    with pytest.raises(ToodError, match="their_package:Gone of the package their_package failed: AttributeError"):
        registry.get("gone")
    with pytest.raises(ToodError, match=r"their_package:Other of .* has another name"):
        registry.get("second")
    with pytest.raises(ToodError, match=r"(third|fourth)_package:\w+ and .* have this name"):
        registry.get("third")
