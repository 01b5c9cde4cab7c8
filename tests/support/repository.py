"""The repository as its own tests see it: where it is, and its tools run from its root."""

from __future__ import annotations

import os
import subprocess
import sys
import sysconfig
import tomllib
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[2]


def project() -> dict[str, Any]:
    return tomllib.loads((ROOT / "pyproject.toml").read_text())


def check_with(module: str, *arguments: str) -> None:
    """Run a tool on the whole repository; what it finds is what the test says."""
    done = _run([sys.executable, "-m", module, *arguments], ROOT)
    if done.returncode:
        pytest.fail(f"{module} {' '.join(arguments)}\n{done.stdout}{done.stderr}", pytrace=False)


def lint_imports(root: Path = ROOT, *arguments: str) -> subprocess.CompletedProcess[str]:
    """import-linter on the link tree of `root`, which shows it the packages under the names they are installed as."""
    program = str(Path(sysconfig.get_path("scripts"), "lint-imports"))
    return _run([program, "--no-logo", "--no-cache", *arguments], root, PYTHONPATH=str(root / ".import"))


def _run(argv: list[str], root: Path, **env: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(argv, cwd=root, env={**os.environ, **env}, capture_output=True, text=True, check=False)
