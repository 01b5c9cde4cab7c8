"""A call of users' code: whatever it raises is its failure, SystemExit and KeyboardInterrupt among it.

Python raises what a signal means (Ctrl-C; the SystemExit with which the processes of a worker are told to go) in the
main thread and nowhere else. So in every other thread these come from the code that runs there. In the main thread
nobody can tell the one from the other: there a call is handed to another thread, and the main thread waits for it.

Imports stay where they are, because a module may insist on the main thread. There a KeyboardInterrupt counts as
Ctrl-C, and a SystemExit as what a script without a main guard does.
"""

from __future__ import annotations

import contextvars
import os
import sysconfig
import threading
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

T = TypeVar("T")


class Quit(Exception):
    """The code tried to end more than itself, by sys.exit() say."""

    def __init__(self, error: BaseException) -> None:
        super().__init__(f"{error!r}, which would end the process and not only this call")


def call(job: Callable[[], T]) -> T:
    """What the job returns. Raises what it raises where that is an Exception, else Quit."""
    return _in_another_thread(job) if is_main_thread() else _called(job)


def failures() -> tuple[type[BaseException], ...]:
    """By what an import or a constructor of users' code may fail, in this thread."""
    return (Exception, SystemExit) if is_main_thread() else (Exception, SystemExit, KeyboardInterrupt)


def is_main_thread() -> bool:
    return threading.current_thread() is threading.main_thread()


def _called(job: Callable[[], T]) -> T:
    try:
        return job()
    except (SystemExit, KeyboardInterrupt) as error:
        raise Quit(error) from error


def _in_another_thread(job: Callable[[], T]) -> T:
    results: list[T] = []
    errors: list[BaseException] = []

    def run() -> None:
        try:
            results.append(_called(job))
        except BaseException as error:  # raised again where it is waited for
            errors.append(error)

    thread = threading.Thread(target=contextvars.copy_context().run, args=(run,), name="chordage-users", daemon=True)
    thread.start()
    thread.join()
    if errors:
        raise errors[0]
    return results[0]


_OURS = f"{Path(__file__).parents[2]}{os.sep}"
_OF_PYTHON = tuple(f"{sysconfig.get_path(name)}{os.sep}" for name in ("stdlib", "platstdlib", "purelib", "platlib"))


def line_of(error: BaseException) -> str:
    """The line of the user's own file at which it came about, as ` (file:line)`; of a package, where no file of theirs
    takes part. Never a line of ours, nor of the machinery that imports.
    """
    if isinstance(error, SyntaxError) and error.filename:
        return f" ({error.filename}:{error.lineno})"
    frames = traceback.extract_tb(error.__traceback__)
    others = [one for one in frames if not one.filename.startswith((_OURS, "<"))]
    others = [one for one in others if "importlib" not in Path(one.filename).parts]
    own = [one for one in others if not one.filename.startswith(_OF_PYTHON)] or others
    return f" ({own[-1].filename}:{own[-1].lineno})" if own else ""
