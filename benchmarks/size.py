"""Code lines of src/tood by package, without blank lines, comments and docstrings; fails above the ceiling.

python benchmarks/size.py              # lines by package
python benchmarks/size.py --longest    # the longest functions too
"""

from __future__ import annotations

import argparse
import ast
import io
import sys
import tokenize
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[1]
SOURCE = ROOT / "src" / "tood"
CEILING = 17600
LONGEST = 60  # lines of code in one function
LOOSE = 9  # modules beside the packages
SILENT = {tokenize.COMMENT, tokenize.NL, tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT, tokenize.ENDMARKER}


def docstring_lines(tree: ast.AST) -> set[int]:
    lines: set[int] = set()
    for node in ast.walk(tree):
        if isinstance(node, (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)):
            first = node.body[0] if node.body else None
            if (
                isinstance(first, ast.Expr)
                and isinstance(first.value, ast.Constant)
                and isinstance(first.value.value, str)
            ):
                lines |= set(range(first.lineno, (first.end_lineno or first.lineno) + 1))
    return lines


def code_lines(file: Path) -> set[int]:
    """The numbers of the lines of a file that hold code."""
    text = file.read_text(encoding="utf-8")
    lines: set[int] = set()
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if token.type not in SILENT:
            lines |= set(range(token.start[0], token.end[0] + 1))
    return lines - docstring_lines(ast.parse(text))


def functions(file: Path, code: set[int]) -> Iterator[tuple[int, str]]:
    """Code lines and place of each function, signature included."""
    for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
            size = sum(line in code for line in range(node.lineno, (node.end_lineno or node.lineno) + 1))
            yield size, f"{file.relative_to(SOURCE)}:{node.lineno} {node.name}"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--longest", action="store_true", help="list the twenty longest functions")
    arguments = parser.parse_args()
    packages: Counter[str] = Counter()
    files: Counter[str] = Counter()
    sizes: list[tuple[int, str]] = []
    for file in sorted(SOURCE.rglob("*.py")):
        code = code_lines(file)
        parts = file.relative_to(SOURCE).parts
        package = parts[0] if len(parts) > 1 else "(modules)"
        packages[package] += len(code)
        files[package] += 1
        sizes += functions(file, code)
    for package, lines in packages.most_common():
        print(f"{package:14} {files[package]:4} files {lines:6} lines")
    total, longest = packages.total(), max(sizes)
    tests = sum(len(file.read_text(encoding="utf-8").splitlines()) for file in (ROOT / "tests").rglob("*.py"))
    print(f"{'all':14} {files.total():4} files {total:6} lines (ceiling {CEILING})")
    print(f"tests          {tests} lines, blank ones included")
    print(f"longest function: {longest[0]} lines, {longest[1]}")
    if arguments.longest:
        print("\n".join(f"{size:4} {place}" for size, place in sorted(sizes, reverse=True)[:20]))
    # __init__, __main__ and cli are how the package is entered.
    loose = files["(modules)"] - sum((SOURCE / name).exists() for name in ("__init__.py", "__main__.py", "cli.py"))
    print(f"loose modules: {loose} (at most {LOOSE})")
    return int(total > CEILING or longest[0] > LONGEST or loose > LOOSE)


if __name__ == "__main__":
    sys.exit(main())
