"""Where figures come from: they mean nothing without it."""

from __future__ import annotations

import os
import platform
from importlib import metadata

LIBRARIES = ("celery", "kombu", "redis", "hiredis", "sqlalchemy", "psycopg")


def describe() -> dict[str, str]:
    return {
        "cores": str(os.cpu_count()),
        "load": _load(),
        "system": f"{platform.system()} {platform.release()} {platform.machine()}",
        "python": platform.python_version(),
        **{name: version for name in LIBRARIES if (version := _version(name))},
    }


def _load() -> str:
    """More than the cores: others were at work, and only counts and ratios can be trusted."""
    return f"{os.getloadavg()[0]:.1f} before the start" if hasattr(os, "getloadavg") else "unknown"


def _version(name: str) -> str | None:
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return None
