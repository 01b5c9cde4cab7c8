"""The folders, what is packaged, and what the static tools see are the same thing."""

from __future__ import annotations

from pathlib import Path

import pytest

from support.repository import ROOT, project

LINKS = ROOT / ".import" / "chordage"
FACADE = ROOT / "orchestrator" / "facade"
BANNED = {"util", "utils", "common", "helper", "helpers", "manager", "managers", "misc", "base_utils"}
TOP_LEVEL = {"orchestrator", "tasks", "workers", "config", "testing", "benchmarks"}


def modules():
    return [file for folder in sorted(TOP_LEVEL) for file in (ROOT / folder).rglob("*.py")]


def test_every_code_folder_is_a_package():
    without = {file.parent.relative_to(ROOT) for file in modules() if not (file.parent / "__init__.py").exists()}

    assert not without, f"no __init__.py in {without}"


def test_data_files_of_packages_exist():
    for package, patterns in project()["tool"]["setuptools"]["package-data"].items():
        folder = LINKS.parent.joinpath(*package.split("."))
        for pattern in patterns:
            assert any(folder.glob(pattern)), f"{package}: nothing matches {pattern}"


def test_link_tree_has_every_code_folder():
    for name in TOP_LEVEL:
        link = LINKS / name
        assert link.is_symlink(), f"{link} is missing"
        assert link.resolve() == ROOT / name


def test_link_tree_has_every_file_of_the_facade():
    for file in (*FACADE.glob("*.py"), FACADE / "py.typed"):
        link = LINKS / file.name
        assert link.resolve() == file, f"ln -s {Path('../..') / file.relative_to(ROOT)} {link.relative_to(ROOT)}"


def test_link_tree_has_nothing_else():
    links = [link for link in LINKS.iterdir() if link.name != "__pycache__"]

    assert {link.resolve() for link in links} == {*(ROOT / name for name in TOP_LEVEL), *FACADE.glob("*.*")}
    assert all(not link.readlink().is_absolute() for link in links)


@pytest.mark.parametrize("file", modules(), ids=lambda file: str(file.relative_to(ROOT)))
def test_module_name_says_what_the_module_holds(file):
    words = {file.stem, file.parent.name}

    assert not words & BANNED, "name it after what it holds or does"


def test_tests_are_no_package():
    assert list((ROOT / "tests").rglob("__init__.py")) == []
