"""The lowest versions that pyproject.toml allows: tests at the seams to them, and a fleet, in an environment of their
own.

Tried are the statements, the wire, the messages of Celery, the readers of files, the clients of models and the HTTP
server. Left out: what needs the package mcp, which wants a newer pydantic than the rest; what uses no library, such as
the core and the faces; what only tries our own commands and steps; and PostgreSQL through plain cursors, by which the
same statements go. Of the rest a run draws a third (support/draws.py); at the newest versions all of it runs.
"""

from __future__ import annotations

import os
import subprocess
import venv
from importlib.metadata import version
from pathlib import Path

import pytest
from packaging.version import Version

from support.draws import ONE_OF
from support.repository import ROOT
from support.versions import EXTRAS, lowest

pytestmark = pytest.mark.slow
OURS = (
    "gateways/mcp", "bench", "cli", "core", "faces", "fleet", "plugins", "schedules", "simulate", "strategies",
    "system", "testing", "views",
)  # fmt: skip
WITHOUT = tuple(f"--ignore=tests/unit/{folder}" for folder in OURS)
OLD_STARLETTE = ("-W", "ignore:The anyio.abc.BlockingPortal alias is deprecated:DeprecationWarning")
SEAMS = {
    "unit": ("tests/unit", "-m", "not mcp", *WITHOUT, *OLD_STARLETTE),
    "commands": tuple(f"tests/unit/cli/test_{name}.py" for name in ("status", "keys")),
    "store": ("tests/store", "-k", "not at_scale and not cursors and not large_table"),
    "flow": tuple(
        f"tests/flow/test_{name}.py" for name in ("bus", "delivery", "output", "placement", "pooler", "turn")
    ),
    "http": (
        *(f"tests/live/http/test_{name}.py" for name in ("console", "sessions", "streams", "turns")),
        *OLD_STARLETTE,
    ),
}
WITHOUT_MCP = tuple(extra for extra in EXTRAS if extra != "mcp")


@pytest.fixture(scope="module")
def lowest_python(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("lowest")
    constraints = folder / "lowest.txt"
    constraints.write_text("".join(f"{name}=={number}\n" for name, number in lowest(WITHOUT_MCP).items()))
    venv.create(folder / "venv", with_pip=True)
    python = folder / "venv" / "bin" / "python"
    run(python, "-m", "pip", "install", "-q", "-e", f"{ROOT}[test]", "-c", str(constraints))
    return python


def run(python: Path, *arguments: str, cwd: Path = ROOT) -> str:
    env = {name: value for name, value in os.environ.items() if not name.startswith(("PYTEST_", "CHORDAGE_"))}
    done = subprocess.run(
        [python, *arguments], cwd=cwd, env=env, capture_output=True, text=True, check=False, timeout=1500
    )
    if done.returncode:
        pytest.fail(f"{' '.join(arguments)}\n{done.stdout[-20_000:]}{done.stderr[-5_000:]}", pytrace=False)
    return done.stdout


def test_the_environment_has_the_lowest_versions(lowest_python):
    wanted = lowest(WITHOUT_MCP)
    show = f"from importlib.metadata import version\nfor name in {sorted(wanted)}: print(name, version(name))"
    installed = dict(line.split() for line in run(lowest_python, "-c", show).splitlines())

    assert {name: Version(installed[name]) for name in wanted} == {name: Version(wanted[name]) for name in wanted}
    assert installed["celery"] != version("celery"), "both environments test the same version"


@pytest.mark.parametrize("tests", SEAMS.values(), ids=SEAMS)
def test_the_seams_hold_at_the_lowest_versions(lowest_python, tests):
    run(lowest_python, "-m", "pytest", "-q", "-n", "2", "-p", "no:cacheprovider", "--one-of", str(ONE_OF), *tests)


def test_a_fleet_works_at_the_lowest_versions(lowest_python, tmp_path):
    shown = run(lowest_python, "-m", "chordage.workers.cli", "demo", cwd=tmp_path)

    assert "━" in shown
