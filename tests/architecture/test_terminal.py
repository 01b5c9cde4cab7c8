"""What reaches a terminal passes through workers/cli/output.py, where the text of strangers is made inert."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PACKAGES = ("config", "orchestrator", "tasks", "testing", "workers")
THE_ONE = ROOT / "workers" / "cli" / "output.py"
PRINTS = {"print", "Console", "print_exc", "print_exception"}
OF_CLICK = {"echo", "secho", "echo_via_pager", "getchar"}
OURS = {"out", "self._console"}  # made by `console` of that module
STREAMS = {"stdout", "stderr", "__stdout__", "__stderr__"}
WRITES = {"write", "writelines"}


def ways_past(text: str) -> Iterator[int]:
    """Lines in which something is printed past the console."""
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Raise) and _ends_with_words(node.exc):
            yield node.lineno
        if not isinstance(node, ast.Call):
            continue
        written = ast.unparse(node.func)
        owner, _, name = written.rpartition(".")
        prints = (name in PRINTS and owner not in OURS) or (name in OF_CLICK and owner in {"", "click"})
        if prints or name in WRITES and STREAMS & set(owner.split(".")):
            yield node.lineno


def _ends_with_words(raised: ast.expr | None) -> bool:
    """Python prints what a program that ends so says."""
    is_exit = isinstance(raised, ast.Call) and getattr(raised.func, "id", "") == "SystemExit"
    words = [given for given in raised.args if not isinstance(given, ast.Constant | ast.Name)] if is_exit else []
    return any(not ast.unparse(given).startswith("inert(") for given in words)


def test_nothing_is_printed_past_the_one_console():
    files = [file for package in PACKAGES for file in (ROOT / package).rglob("*.py") if file != THE_ONE]
    found = [f"{file.relative_to(ROOT)}:{line}" for file in files for line in ways_past(file.read_text())]
    assert found == []
    assert len(files) > 150


@pytest.mark.parametrize(
    "code",
    [
        "print(text)", "click.echo(text)", "click.secho(text)", "sys.stdout.write(text)", "sys.stderr.writelines(x)",
        "Console().print(text)", "rich.print(text)", "echo(text)", "raise SystemExit(f'no: {text}')",
        "traceback.print_exc()",
    ],
)  # fmt: skip
def test_each_way_past_it_is_noticed(code):
    assert set(ways_past(code)) == {1}
