"""One name, one thing: a public class name is defined once in the tree, and the glossary fits a page."""

from __future__ import annotations

import ast
from collections import defaultdict

from support.repository import ROOT

FOLDERS = ("orchestrator", "workers", "tasks", "config", "testing")
PAGE = 60  # lines


def test_a_public_class_name_is_defined_once() -> None:
    places = defaultdict(list)
    for folder in FOLDERS:
        for file in sorted((ROOT / folder).rglob("*.py")):
            for node in ast.parse(file.read_text()).body:
                if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                    places[node.name].append(file.relative_to(ROOT).as_posix())

    assert len(places) > 300, "it has looked at the tree"
    assert {name: files for name, files in places.items() if len(files) > 1} == {}


def test_only_the_runtime_lies_loose_in_the_orchestrator() -> None:
    assert [file.name for file in (ROOT / "orchestrator").glob("*.py") if file.name != "__init__.py"] == ["runtime.py"]


def test_the_glossary_fits_a_page() -> None:
    assert len((ROOT / "docs" / "reference" / "glossary.md").read_text().splitlines()) <= PAGE
