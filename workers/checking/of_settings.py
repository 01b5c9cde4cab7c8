"""The settings: every one that is wrong, with the line of chordage.toml or the variable that says so."""

from __future__ import annotations

import tomllib
from collections.abc import Callable, Iterator
from pathlib import Path

from chordage.config import settings as config
from chordage.config.settings import FILE, Problem, Settings
from chordage.orchestrator.core import bounds
from chordage.orchestrator.core.errors import UserError
from chordage.orchestrator.gateways.room import files
from chordage.orchestrator.gateways.room.files import Source, syntax_fault
from chordage.orchestrator.store.database import Store
from chordage.workers.bootstrap import redis_from
from chordage.workers.checking.looked import Looked, counted


def look() -> tuple[Looked, Settings]:
    """With the settings to go on with: where they are broken, the usual ones, and the folder that is named."""
    file = Path(FILE)
    text = file.read_text(encoding="utf-8", errors="replace") if file.exists() else ""
    faults = _syntax(text) or [_placed(problem, text) for problem in config.problems()]
    settings = _usual() if faults else config.load()
    faults += [] if faults else _of_addresses(settings)
    faults += config.unknown_variables()
    given = [name for name in config.environment() if name.startswith("CHORDAGE_")]
    what = f"{FILE if file.exists() else f'no {FILE}'}, {counted(len(given), 'variable')} in the environment"
    return Looked(kind="settings", what=what, faults=faults), settings


def _of_addresses(settings: Settings) -> Iterator[str]:
    """What can be said of them without connecting."""
    checks: list[Callable[[], object]] = [lambda: Store(settings.database, pool_size=1).engine]
    if settings.redis is not None:
        checks.append(lambda: redis_from(settings).close())
    for check in checks:
        try:
            check()
        except UserError as error:
            yield str(error)
        except ValueError as error:
            yield f"setting redis_url ({config.variable_of(('redis_url',))} or {FILE}): {error}"


def _syntax(text: str) -> list[str]:
    try:
        bounds.loads_toml(text)
    except tomllib.TOMLDecodeError as error:
        return [syntax_fault(Source(name=FILE, text=text), error)]
    return []


def _placed(problem: Problem, text: str) -> str:
    variable = config.variable_of(problem.key)
    if problem.key and variable in config.environment():
        return f"variable {variable}: {problem.told}"
    if not problem.key or not text:
        return problem.told
    return f"{FILE}:{files.line_of(text, problem.key)}: {problem.told}"


def _usual() -> Settings:
    """Without reading what is broken."""
    room = config.environment().get("CHORDAGE_ROOM") or "."
    return Settings.model_construct(room=Path(room))
