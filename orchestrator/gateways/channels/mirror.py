"""`poll/<binding>.json`: how a binding stands, for people to read. Written whole or not at all; never read."""

from __future__ import annotations

import json
from collections.abc import Mapping
from datetime import datetime
from pathlib import Path
from typing import Any

from chordage.orchestrator.system import private_files

FOLDER = "poll"
_SHOWN = (
    "cursor", "looked_at", "stored_at", "holder", "failures", "error", "next_look", "taken", "doubled", "refused",
    "passed_over",
)  # fmt: skip


def write(room: Path, name: str, row: Mapping[str, Any]) -> None:
    """Raises OSError."""
    folder = private_files.folder(room / FOLDER)
    shown = {"binding": name, **{key: row[key] for key in _SHOWN}}
    text = json.dumps(shown, default=_text, ensure_ascii=False, indent=2)
    private_files.write(folder / f"{name}.json", text + "\n")


def _text(value: Any) -> str:
    return value.isoformat() if isinstance(value, datetime) else str(value)
