"""What was measured of one state of the code, and `benchmarks/results`, which keeps the last three states."""

from __future__ import annotations

import json
import os
import platform
import subprocess
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import UTC, datetime
from importlib import metadata
from pathlib import Path
from typing import Any

from chordage.benchmarks.counting import Counts
from chordage.benchmarks.measuring import Overhead, Recovery, Speed

FOLDER = Path(__file__).parent / "results"
KEPT = 3
LIBRARIES = ("celery", "kombu", "redis", "hiredis", "sqlalchemy", "psycopg")


@dataclass(kw_only=True, slots=True)
class Results:
    """By scenario; `counts` has the chord too. `state`: the commit."""

    state: str
    at: str
    machine: dict[str, str]
    database: str
    repeat: int
    speed: dict[str, Speed] = field(default_factory=dict)
    counts: dict[str, Counts] = field(default_factory=dict)
    overhead: dict[str, dict[str, Overhead]] = field(default_factory=dict)  # by turns at once
    recovery: Recovery | None = None
    failed: dict[str, str] = field(default_factory=dict)  # scenarios without figures


def begin(database: str, repeat: int) -> Results:
    at = datetime.now(UTC).isoformat(timespec="minutes")
    return Results(state=_commit(), at=at, machine=_machine(), database=database, repeat=repeat)


def _commit() -> str:
    command = ("git", "-C", str(FOLDER.parent), "rev-parse", "--short", "HEAD")
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=False)
    except FileNotFoundError:
        return "unknown"
    return done.stdout.strip() or "unknown"


def _machine() -> dict[str, str]:
    """Figures mean nothing without it. A load above the cores: only counts and ratios can be trusted."""
    return {
        "cores": str(os.cpu_count()),
        "load": f"{os.getloadavg()[0]:.1f} before the start" if hasattr(os, "getloadavg") else "unknown",
        "system": f"{platform.system()} {platform.machine()}",
        "python": platform.python_version(),
        **{name: version for name in LIBRARIES if (version := _version(name))},
    }


def _version(name: str) -> str | None:
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return None


def save(results: Any, to_json: Callable[[Any], Any], folder: Path = FOLDER) -> Path:
    """A state that is measured again replaces its file. Of the others, the oldest go."""
    folder.mkdir(exist_ok=True)
    for file in folder.glob(f"*-{results.state}.json"):
        file.unlink()
    kept = folder / f"{results.at.replace(':', '')[:15]}-{results.state}.json"
    kept.write_text(json.dumps(results, default=to_json, indent=1) + "\n")
    for file in sorted(folder.glob("*.json"))[:-KEPT]:
        file.unlink()
    return kept


def kept(folder: Path = FOLDER) -> list[dict[str, Any]]:
    """As JSON has them, oldest first."""
    return [json.loads(file.read_text()) for file in sorted(folder.glob("*.json"))]
