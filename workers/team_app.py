"""The Celery app of the team, which is the current app wherever code of the room runs.

`shared_task` and `current_app` look for an app in the thread, and else for the default of the process. A Celery worker
puts its own app in both places, and tools, plugins and channels run in threads of that worker: a task of the team that
a tool calls would go to our broker, and be run by our workers. So our app is neither. We pass it explicitly.
"""

from __future__ import annotations

import os
import sys
import traceback
from functools import cache
from typing import Any

import structlog
from celery import Celery, _state
from celery.app.utils import find_app

from chordage.config.settings import Settings
from chordage.orchestrator.core.errors import ConfigError
from chordage.orchestrator.gateways.room import imports

log = structlog.get_logger()

OURS = "chordage"
celery_state: Any = _state  # the type checker knows only what is public in it


def make_current(settings: Settings) -> None:
    """For this thread, and for every thread that has none of its own. Raises ConfigError.

    Call it before the room is imported, and again after Celery has set its own app: at the start of a worker and of
    each of its processes.
    """
    if settings.celery_app is not None:
        imports.make_importable(settings.room_path)
    app = _default_app() if settings.celery_app is None else _loaded(settings.celery_app)
    app.set_default()
    app.set_current()


def let_tools_wait() -> None:
    """Celery forbids that a task waits for another, which might need the same slot. A tool may wait for a task of the
    team: that has workers of its own. Call it after the start of the pool, which forbids it for its process.
    """
    celery_state._set_task_join_will_block(False)  # noqa: SLF001 - what allow_join_result does, for good


@cache
def _default_app() -> Celery:
    """As Celery itself makes it where there is no app: with the settings of a module celeryconfig, if there is one."""
    loader = os.environ.get("CELERY_LOADER") or "default"
    return Celery("default", fixups=[], set_as_current=False, loader=loader)


@cache
def _loaded(name: str) -> Celery:
    """With all that its own workers import at their start. Where it is a Django project, Django is set up by that."""
    try:
        app = find_app(name)
        if isinstance(app, Celery) and app.main != OURS:
            app.loader.import_default_modules()
    except (Exception, SystemExit) as error:
        raise ConfigError(f"setting celery_app ({name}): {_explain(name, error)}") from error
    if not isinstance(app, Celery):
        raise ConfigError(f"setting celery_app ({name}): that is {app!r} and no Celery app; give module:app")
    if app.main == OURS:
        raise ConfigError(f"setting celery_app ({name}): that is Chordage's own app; name the one of your project")
    return app


def _explain(name: str, error: BaseException) -> str:
    module, _, attribute = name.partition(":")
    if attribute and module in sys.modules and not hasattr(sys.modules[module], attribute):
        return f"module {module} has no {attribute!r}"  # Celery looks for a module of the whole name then
    if isinstance(error, ModuleNotFoundError) and error.name and f"{module}.".startswith(f"{error.name}."):
        return f"there is no module {error.name}; install it, put it into the room, or set PYTHONPATH"
    outside = [
        frame for frame in traceback.extract_tb(error.__traceback__)
        if "importlib" not in frame.filename and "/celery/" not in frame.filename and frame.filename != __file__
    ]  # fmt: skip
    place = f" ({outside[-1].filename}:{outside[-1].lineno})" if outside else ""
    return f"importing it raised {type(error).__name__}: {error}{place}"
