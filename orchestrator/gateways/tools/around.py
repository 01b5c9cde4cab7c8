"""What a team wants around each of its tools: a function of its own that returns a context manager.

It is entered in the thread that runs the tool, before each try, and left after it, with the exception if there is one.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from functools import cached_property
from typing import Any

from chordage.orchestrator.core.errors import RoomError
from chordage.orchestrator.gateways.tools.context import Context
from chordage.orchestrator.system import user_code

Around = Callable[[Context], AbstractContextManager[Any]]


def nothing_around(_context: Context) -> AbstractContextManager[Any]:
    return nullcontext()


class NamedAround:
    """The function `module:function`, imported when it is first needed."""

    def __init__(self, name: str) -> None:
        self._name = name

    @cached_property
    def _function(self) -> Callable[[Context], Any]:
        try:
            return user_code.load_function(self._name, what="around_tools")
        except user_code.NotLoaded as error:
            raise RoomError(f"setting around_tools ({self._name}): {error}") from error

    def check(self) -> None:
        """Raises RoomError when it cannot be had."""
        _ = self._function

    @contextmanager
    def __call__(self, context: Context) -> Iterator[None]:
        manager = self._function(context)
        if not isinstance(manager, AbstractContextManager):
            raise TypeError(
                f"around_tools ({self._name}) must return a context manager, not {type(manager).__name__}: "
                "put @contextlib.contextmanager above a function that yields"
            )
        raised: BaseException | None = None
        with manager:
            try:
                yield
            except BaseException as error:
                raised = error
                raise
        if raised is not None:
            raise raised  # what a tool raised may be a question or an order to stop, and is not for others to swallow
