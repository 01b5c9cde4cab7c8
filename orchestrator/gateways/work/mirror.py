"""`pulse.json`: what the rows say, written whole or not at all."""

from __future__ import annotations

import dataclasses
import json
from datetime import datetime
from pathlib import Path
from typing import Any

import structlog

from chordage.orchestrator.system import private_files

log = structlog.get_logger()


def text_of(shown: Any) -> str:
    return json.dumps(dataclasses.asdict(shown), default=_plain, ensure_ascii=False, indent=1) + "\n"


def _plain(value: object) -> str:
    return value.isoformat(timespec="seconds") if isinstance(value, datetime) else str(value)


def write(file: Path, text: str) -> None:
    """A room that cannot be written to has no mirror; nothing else depends on it."""
    try:
        private_files.write(file, text)
    except OSError as error:
        log.warning("pulse.json was not written", error=str(error))
