"""The import contracts hold, and every one of them bites.

The contracts stand in pyproject.toml. Here each is broken in a copy of the tree, once per way of breaking it: a
contract that finds nothing because it looks at nothing would go unnoticed for ever.
"""

from __future__ import annotations

import shutil

import pytest

from support.repository import ROOT, lint_imports, project

COPIED = ("orchestrator", "tasks", "workers", "config", "testing", "benchmarks", ".import")

# The contract, then what is added to which modules.
BREAKS = {
    "worker knows the benchmarks": ("packages", {"workers": "import chordage.benchmarks"}),
    "worker knows what tests of users need": ("packages", {"workers": "from chordage.testing import world"}),
    "celery task knows the workers": ("packages", {"tasks": "import chordage.workers"}),
    "orchestrator knows the celery tasks": ("packages", {"orchestrator": "from chordage import tasks"}),
    "upwards inside a function": (
        "packages",
        {"orchestrator": "def late():\n    from chordage import workers\n    return workers"},
    ),
    "upwards for types only": (
        "orchestrator-layers",
        {
            "orchestrator.core": "from typing import TYPE_CHECKING\n"
            "if TYPE_CHECKING:\n    from chordage.orchestrator import store"
        },
    ),
    "store knows a gateway": (
        "orchestrator-layers",
        {"orchestrator.store": "from chordage.orchestrator import gateways"},
    ),
    "loop knows the API": ("orchestrator-layers", {"orchestrator.loops": "from chordage.orchestrator import api"}),
    "loop knows a stage": ("orchestrator-layers", {"orchestrator.loops": "from chordage.orchestrator import stages"}),
    "a transition knows a stage": (
        "orchestrator-layers",
        {"orchestrator.run.transitions": "from chordage.orchestrator import stages"},
    ),
    "views know the transitions": (
        "orchestrator-layers",
        {"orchestrator.views": "from chordage.orchestrator.run import transitions"},
    ),
    "runtime knows the views": (
        "orchestrator-layers",
        {"orchestrator.runtime": "from chordage.orchestrator import views"},
    ),
    "new module without a place": ("orchestrator-layers", {"orchestrator.stray": ""}),
    "stage reads settings": ("settings-are-read-by-workers", {"orchestrator.stages.x": "import chordage.config"}),
    "settings know errors": (
        "settings-know-nothing",
        {"config": "from chordage.orchestrator.core import errors"},
    ),
    "stage calls a stage": (
        "stages-are-strangers",
        {"orchestrator.stages.x": "from . import y", "orchestrator.stages.y": ""},
    ),
    "core looks at the clock": ("pure-centre", {"orchestrator.core": "import time"}),
    "strategy writes a log": ("pure-centre", {"orchestrator.strategies": "from logging import getLogger"}),
    "engine knows celery": ("no-celery-in-the-engine", {"orchestrator.runtime": "from celery import Celery"}),
    "worker writes SQL": ("sql-has-one-address", {"workers": "import sqlalchemy.orm"}),
    "gateway serves HTTP": ("http-has-one-address", {"orchestrator.gateways": "import fastapi"}),
    "HTTP reads the store": (
        "api-reads-through-views",
        {"orchestrator.api": "from chordage.orchestrator.store import schema"},
    ),
    "runtime knows how rooms are read": (
        "runtime-knows-ports",
        {"orchestrator.gateways.schedules.room_work": "from chordage.orchestrator.gateways.room import reading"},
    ),
    "facade shows the engine": (
        "facade-is-thin",
        {"orchestrator.facade": "import chordage.orchestrator.runtime"},
    ),
    "pytest plugin loads a world": ("testing-loads-little", {"testing.plugin": "import chordage.orchestrator.runtime"}),
    "two packages know each other": (
        "no-cycles",
        {
            "workers.cli": "import chordage.workers.fleet",
            "workers.fleet": "import chordage.workers.cli",
        },
    ),
}


@pytest.fixture
def copy(tmp_path):
    for folder in COPIED:
        shutil.copytree(ROOT / folder, tmp_path / folder, symlinks=True, ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copy(ROOT / "pyproject.toml", tmp_path)
    return tmp_path


def file_of(root, module):
    place = root.joinpath(*module.split("."))
    return place / "__init__.py" if place.is_dir() else place.with_suffix(".py")


def contracts():
    return {contract["id"] for contract in project()["tool"]["importlinter"]["contracts"]}


def test_all_contracts_are_kept():
    done = lint_imports()

    assert done.returncode == 0, done.stdout + done.stderr
    assert f"Contracts: {len(contracts())} kept, 0 broken." in done.stdout


def test_every_contract_is_broken_below():
    assert {contract for contract, _ in BREAKS.values()} == contracts()


@pytest.mark.parametrize(("contract", "additions"), BREAKS.values(), ids=BREAKS)
def test_contract_bites(copy, contract, additions):
    for module, text in additions.items():
        with file_of(copy, module).open("a") as file:
            file.write(f"\n{text}\n")

    done = lint_imports(copy, "--contract", contract)

    assert done.returncode == 1, done.stdout + done.stderr
    assert "Contracts: 0 kept, 1 broken." in done.stdout
