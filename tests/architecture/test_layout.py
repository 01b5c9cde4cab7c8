"""The folders, what is packaged, and what the static tools see are the same thing."""

from __future__ import annotations

from pathlib import Path

import pytest

from support.repository import ROOT, project

LINKS = ROOT / "tests" / "typing" / "chordage"
BANNED = {"util", "utils", "common", "helper", "helpers", "manager", "managers", "misc", "base_utils"}
TOP_LEVEL = {"orchestrator", "tasks", "workers", "config"}


def package_folders():
    """Import name to folder, as setuptools maps them."""
    return {name: ROOT / folder for name, folder in project()["tool"]["setuptools"]["package-dir"].items()}


def packages_on_disk(folders):
    """Every folder that holds Python files. A folder with a name of its own (the facade) is no part of its parent."""
    found = set()
    for name, top in folders.items():
        inner = [folder for folder in folders.values() if folder != top and folder.is_relative_to(top)]
        for file in top.rglob("*.py"):
            if not any(file.is_relative_to(folder) for folder in inner):
                found.add(".".join([name, *file.parent.relative_to(top).parts]))
    return found


def modules():
    return [file for folder in sorted(TOP_LEVEL) for file in (ROOT / folder).rglob("*.py")]


def test_packaged_are_exactly_the_folders_that_hold_code():
    listed = project()["tool"]["setuptools"]["packages"]

    assert packages_on_disk(package_folders()) == set(listed), "put the difference right in pyproject.toml, packages"
    assert len(listed) == len(set(listed))


def test_every_code_folder_is_a_package():
    without = {file.parent.relative_to(ROOT) for file in modules() if not (file.parent / "__init__.py").exists()}

    assert not without, f"no __init__.py in {without}"


def test_data_files_of_packages_exist():
    folders = package_folders()
    listed = project()["tool"]["setuptools"]["package-data"]

    for package, patterns in listed.items():
        base = max((name for name in folders if f"{package}.".startswith(f"{name}.")), key=len)
        folder = folders[base].joinpath(*package.removeprefix(base).strip(".").split("."))
        for pattern in patterns:
            assert any(folder.glob(pattern)), f"{package}: nothing matches {pattern}"


def test_link_tree_shows_the_static_tools_every_package():
    for name, folder in package_folders().items():
        if name != "chordage":
            link = LINKS.joinpath(*name.split(".")[1:])
            assert link.is_symlink(), f"{link} is missing"
            assert link.resolve() == folder


def test_link_tree_shows_the_static_tools_every_module_of_the_facade():
    facade = package_folders()["chordage"]

    for file in facade.glob("*.py"):
        link = LINKS / file.name
        assert link.resolve() == file, f"ln -s {Path('../../..') / file.relative_to(ROOT)} {link.relative_to(ROOT)}"


def test_link_tree_points_nowhere_else():
    targets = {link.resolve() for link in LINKS.iterdir()}

    assert all(target.exists() for target in targets)
    assert {target.relative_to(ROOT).parts[0] for target in targets} <= TOP_LEVEL


@pytest.mark.parametrize("file", modules(), ids=lambda file: str(file.relative_to(ROOT)))
def test_module_name_says_what_the_module_holds(file):
    words = {file.stem, file.parent.name}

    assert not words & BANNED, "name it after what it holds or does"


def test_tests_are_no_package():
    assert [file for file in (ROOT / "tests").rglob("__init__.py") if not file.is_relative_to(LINKS)] == []
