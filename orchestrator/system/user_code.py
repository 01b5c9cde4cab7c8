"""Code that users wrote: imported by name, called, and given a time limit.

Whatever such code raises is its own failure, SystemExit and KeyboardInterrupt included. Python raises what a signal
means (Ctrl-C, or the SystemExit that stops the processes of a worker) in the main thread only. So in
every other thread these exceptions come from the code that runs there. In the main thread the two look alike:
there a call is handed to another thread, and the main thread waits for it.

Imports stay in the thread they are asked from, because a module may insist on the main thread. There a
KeyboardInterrupt counts as Ctrl-C, and a SystemExit as what a script without a main guard does.

Django closes a connection that is too old or broken at the beginning and the end of a request, in the thread of that
request. A tool, a plugin or a channel runs in a thread that never has a request, so it is done here. Django is not
imported: where the user's code has not imported it, there is no connection either.
"""

from __future__ import annotations

import contextvars
import importlib
import logging
import os
import sys
import sysconfig
import threading
import time
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from importlib.metadata import EntryPoint, entry_points
from pathlib import Path
from queue import Empty, SimpleQueue
from types import ModuleType
from typing import Any, Generic, TypeVar

from chordage.orchestrator.core.errors import RoomError
from chordage.orchestrator.core.text import clean_text

T = TypeVar("T")

CHECK_EVERY = 0.5  # seconds
MESSAGE_LENGTH = 4_000  # characters of the text of an exception

_log = logging.getLogger(__name__)


class NotLoaded(RoomError):
    """A name leads to no code that can be used. The text says what to do."""


class ExitAttempted(Exception):
    """The code tried to end the process, by sys.exit() for example."""

    def __init__(self, error: BaseException) -> None:
        super().__init__(f"{error!r}, which would end the process and not only this call")


class TookTooLong(Exception):
    """The call has not returned. Its thread is abandoned."""


class JobRaised(Exception):
    """Wraps what the call raised, so that it differs from what a signal raises in the thread that waits."""

    def __init__(self, error: BaseException) -> None:
        super().__init__(words_of(error))
        self.error = error

    def __str__(self) -> str:
        return f"{type(self.error).__name__}: {self.args[0]}"


def words_of(error: BaseException) -> str:
    """The text of an exception of users' code, which wrote that too: it may be of any length, hold what no database
    stores, or raise.
    """
    try:
        return clean_text(str(error))[:MESSAGE_LENGTH]
    except (Exception, SystemExit) as worse:
        return f"(its text cannot be read: {type(worse).__name__})"


def load_function(name: str, group: str | None = None, *, what: str) -> Callable[..., Any]:
    """The function behind an entry point of `group`, or behind an import path `module:attribute`. Raises NotLoaded."""
    offered = {point.name: point for point in entry_points(group=group)} if group else {}
    function = load(offered[name]) if name in offered else _from_path(name, sorted(offered), what)
    if not callable(function):
        raise NotLoaded(f"{what} {name!r} is no function but {function!r}")
    return function  # type: ignore[no-any-return]


def load(point: EntryPoint) -> Any:
    """Raises NotLoaded."""
    try:
        return point.load()
    except failures() as error:
        why = f"{type(error).__name__}: {words_of(error)}{line_of(error)}"
        raise NotLoaded(
            f"its entry point {point.value} cannot be loaded ({why}); repair or remove the package that offers it"
        ) from error


def load_module(name: str) -> ModuleType:
    """Raises NotLoaded."""
    importlib.invalidate_caches()  # the file may have been written a moment ago
    try:
        return importlib.import_module(name)
    except failures() as error:  # a script without a main guard ends "the program"
        if isinstance(error, ModuleNotFoundError) and error.name and f"{name}.".startswith(f"{error.name}."):
            file = f"{error.name.partition('.')[0]}.py"
            why = f"there is no module {error.name}; put {file} into the room, or install it"
        else:
            why = f"importing module {name} raised {type(error).__name__}: {words_of(error)}{line_of(error)}"
        raise NotLoaded(why) from error


def _from_path(name: str, offered: list[str], what: str) -> Any:
    path, colon, attribute = name.partition(":")
    if not colon:
        known = f", or one of {', '.join(offered)}" if offered else ""
        raise NotLoaded(f"there is no {what} {name!r}; give an import path, module:function{known}")
    module = load_module(path)
    if not hasattr(module, attribute):
        functions = sorted(name for name, value in vars(module).items() if callable(value) and not name.startswith("_"))
        raise NotLoaded(f"module {path} has no {attribute!r}; there are: {', '.join(functions) or 'no functions'}")
    return getattr(module, attribute)


def failures() -> tuple[type[BaseException], ...]:
    """The exceptions by which an import or a constructor of users' code may fail in this thread."""
    return (Exception, SystemExit) if _is_main_thread() else (Exception, SystemExit, KeyboardInterrupt)


def call(job: Callable[[], T]) -> T:
    """What the job returns. Raises what it raises where that is an Exception, else ExitAttempted."""
    if not _is_main_thread():
        return _without_exit(job)
    result, error = _Job(lambda: _without_exit(job), "chordage-users").end()
    if error is not None:
        raise error
    return result


def within(seconds: float, job: Callable[[], T], name: str, check: Callable[[], None] = lambda: None) -> T:
    """What the job returns. Raises JobRaised or TookTooLong where it does not return.

    It runs in a side thread, with the caller's context variables. Python cannot end a thread: one that hangs costs its
    memory until its process ends, and keeps no process from ending. `check` is called about twice a second; what it
    raises ends the wait.
    """
    waiting = _Job(job, name)
    deadline = time.monotonic() + seconds
    while (left := deadline - time.monotonic()) > 0:
        try:
            result, error = waiting.end(min(left, CHECK_EVERY))
        except Empty:
            check()
            continue
        if error is not None:
            raise JobRaised(error)
        return result
    raise TookTooLong


class SideThread:
    """Ends when it is dismissed, or with the last reference to this object."""

    def __init__(self) -> None:
        self._jobs: SimpleQueue[Callable[[], object] | None] = SimpleQueue()
        self._thread = threading.Thread(target=_serve, args=(self._jobs,), name="chordage-side", daemon=True)
        self._thread.start()

    @property
    def alive(self) -> bool:
        return self._thread.is_alive()  # False in a child process that was forked off

    def submit(self, job: Callable[[], object]) -> None:
        self._jobs.put(job)

    def dismiss(self) -> None:
        self._jobs.put(None)

    def __del__(self) -> None:
        self.dismiss()


class SideThreads(threading.local):
    """For each thread the idle side thread it may use next. To start one costs more than most of what runs in it."""

    idle: SideThread | None = None

    def take(self) -> SideThread:
        side, self.idle = self.idle, None
        return side if side is not None and side.alive else SideThread()

    def give_back(self, side: SideThread) -> None:
        self.idle = side


def _serve(jobs: SimpleQueue[Callable[[], object] | None]) -> None:
    while (job := jobs.get()) is not None:
        job()
        del job  # or the last call's arguments and result would stay alive until the next call


_SIDES = SideThreads()


class _Job(Generic[T]):
    """A call in a side thread, which is abandoned where its end is not waited for."""

    def __init__(self, job: Callable[[], T], name: str) -> None:
        self._ends: SimpleQueue[tuple[T, BaseException | None]] = SimpleQueue()
        self._side = _SIDES.take()
        self._side.submit(partial(contextvars.copy_context().run, _work, job, name, self._ends))

    def end(self, seconds: float | None = None) -> tuple[T, BaseException | None]:
        """What it returned, and what it raised. Raises Empty where it does not end in time."""
        end = self._ends.get(timeout=seconds)
        _SIDES.give_back(self._side)
        return end


def _work(job: Callable[[], Any], name: str, ends: SimpleQueue[tuple[Any, BaseException | None]]) -> None:
    threading.current_thread().name = name
    try:
        with closed_django_connections():
            result = job()
    except BaseException as error:  # also SystemExit: it would end this thread unseen
        ends.put((None, error))
    else:
        ends.put((result, None))


def _is_main_thread() -> bool:
    return threading.current_thread() is threading.main_thread()


def _without_exit(job: Callable[[], T]) -> T:
    try:
        return job()
    except (SystemExit, KeyboardInterrupt) as error:
        raise ExitAttempted(error) from error


@contextmanager
def fresh_django_connections() -> Iterator[None]:
    """For a thread that is used again: Django decides by CONN_MAX_AGE what stays open."""
    _with_django(lambda db: db.close_old_connections())
    try:
        yield
    finally:
        _with_django(lambda db: db.close_old_connections())


@contextmanager
def closed_django_connections() -> Iterator[None]:
    """For a thread that may not be used again for long."""
    try:
        yield
    finally:
        _with_django(lambda db: db.connections.close_all())


def _with_django(close: Callable[[Any], object]) -> None:
    """The result of the user's code counts, also where a connection cannot be closed."""
    db, conf = sys.modules.get("django.db"), sys.modules.get("django.conf")
    settings = getattr(conf, "settings", None)
    if db is None or settings is None or not settings.configured or not hasattr(db, "close_old_connections"):
        return  # not imported, not configured, or still being imported by another thread
    try:
        close(db)
    except Exception:
        _log.warning("a database connection of Django could not be closed", exc_info=True)


_OURS = f"{Path(__file__).parents[2]}{os.sep}"
_OF_PYTHON = tuple(f"{sysconfig.get_path(name)}{os.sep}" for name in ("stdlib", "platstdlib", "purelib", "platlib"))


def line_of(error: BaseException) -> str:
    """Where the error arose in the user's own files, as ` (file:line)`; in a package, where none of theirs takes part.

    Never a line of ours, nor of the import machinery.
    """
    if isinstance(error, SyntaxError) and error.filename:
        return f" ({error.filename}:{error.lineno})"
    frames = traceback.extract_tb(error.__traceback__)
    foreign = [
        frame
        for frame in frames
        if not frame.filename.startswith((_OURS, "<")) and "importlib" not in Path(frame.filename).parts
    ]
    own = [frame for frame in foreign if not frame.filename.startswith(_OF_PYTHON)] or foreign
    return f" ({own[-1].filename}:{own[-1].lineno})" if own else ""
