"""`@tool`: a plain function, sync or async, becomes something an agent may call.

The function stays what it was; the declaration hangs on it as an attribute. Its schema is made at once, so that a
mistake shows when the module is imported. Only where an annotation names a class that is defined further down must the
schema wait for the first use.
"""

from __future__ import annotations

import contextlib
import inspect
import sys
from collections.abc import Callable, Mapping
from functools import cached_property
from typing import TYPE_CHECKING, Any, TypeVar, overload

from chordage.orchestrator.core.agent import Effect, ToolSpec
from chordage.orchestrator.core.errors import RoomError
from chordage.orchestrator.gateways.tools import docstring, signature
from chordage.orchestrator.gateways.tools.options import Options, checked

if TYPE_CHECKING:
    from chordage.orchestrator.gateways.tools.arguments import Arguments

F = TypeVar("F", bound=Callable[..., Any])
_MARK = "__chordage_tool__"


class Tool:
    """A function as an agent knows it."""

    def __init__(self, function: Callable[..., Any], options: Options, around: Mapping[str, Any]) -> None:
        self.function = function
        self.options = options
        self._around = around

    @property
    def name(self) -> str:
        return self.options.name

    @property
    def place(self) -> str:
        return place_of(self.function)

    @cached_property
    def wants(self) -> signature.Signature:
        try:
            return signature.read(self.function, self._around, self.place)
        except (SyntaxError, TypeError) as error:
            raise RoomError(f"{self.place}: an annotation is not a type: {error}") from error

    @cached_property
    def arguments(self) -> Arguments:
        from chordage.orchestrator.gateways.tools.arguments import (
            Arguments,  # pydantic is heavy: `import chordage` alone must not pay for it
        )

        described = docstring.read(self.function.__doc__).parameters
        return Arguments(self.wants.parameters, described, self.place)

    @cached_property
    def hook_wants(self) -> signature.Signature | None:
        """What the reconcile hook wants to be given."""
        if self.options.reconcile is None:
            return None
        asked = signature.read(self.options.reconcile, self._around, f"{self.place}: reconcile")
        known = {p.name for p in self.wants.parameters}
        if strange := [p.name for p in asked.parameters if p.name not in known]:
            raise RoomError(
                f"{self.place}: reconcile asks for {', '.join(strange)}, which the tool does not have; "
                "it may take the tool's parameters and a Context"
            )
        return asked

    @cached_property
    def spec(self) -> ToolSpec:
        """Raises RoomError where an annotation still names nothing that exists at run time."""
        try:
            schema = self.arguments.schema
        except NameError as error:
            raise RoomError(
                f"{self.place}: an annotation cannot be read: {error}; "
                "import the name for real, not under TYPE_CHECKING, or define it"
            ) from error
        return ToolSpec(
            name=self.name,
            description=docstring.read(self.function.__doc__).description,
            schema=schema,
            effect=self.options.effect,
            timeout=self.options.timeout,
            retries=self.options.retries,
            result_limit=self.options.result_limit,
        )

    def complain_early(self) -> None:
        """Make the schema now. Names that do not exist yet are forgiven: the module is still being imported."""
        with contextlib.suppress(NameError):
            _ = self.arguments, self.hook_wants


@overload
def tool(function: F, /) -> F: ...
@overload
def tool(
    *,
    name: str | None = None,
    effect: Effect | str = Effect.UNSAFE,
    timeout: float = 60.0,
    retries: int = 0,
    retry_on: type[Exception] | tuple[type[Exception], ...] | None = None,
    result_limit: int = 65_536,
    reconcile: Callable[..., Any] | None = None,
) -> Callable[[F], F]: ...
def tool(
    function: Callable[..., Any] | None = None,
    /,
    *,
    name: str | None = None,
    effect: Effect | str = Effect.UNSAFE,
    timeout: float = 60.0,
    retries: int = 0,
    retry_on: type[Exception] | tuple[type[Exception], ...] | None = None,
    result_limit: int = 65_536,
    reconcile: Callable[..., Any] | None = None,
) -> Any:
    """Declare a function as a tool.

    `effect` says what may be done with a call whose worker died inside it: "pure", "idempotent" (run again),
    "reconcilable" (`reconcile` is asked) or "unsafe" (a person is asked). `retries` says how often a call that raised
    one of `retry_on` (default: any exception) may be tried again; one that ran into its `timeout` is not. `reconcile`
    takes the arguments it names and the context, and returns the call's result, or None if the call is known not to
    have happened.
    """
    around = sys._getframe(1).f_locals  # noqa: SLF001 - annotations of a nested function may name what stands around it

    def declare(function: Callable[..., Any]) -> Callable[..., Any]:
        place = _checked_place(function)
        options = checked(
            place,
            name=function.__name__ if name is None else name,
            effect=effect,
            timeout=timeout,
            retries=retries,
            retry_on=retry_on,
            result_limit=result_limit,
            reconcile=reconcile,
        )
        nested = "<locals>" in function.__qualname__
        declared = Tool(function, options, dict(around) if nested else {})
        declared.complain_early()
        setattr(function, _MARK, declared)
        return function

    return declare if function is None else declare(function)


def declared_on(thing: Any) -> Tool | None:
    """The tool that this object is, if it is one."""
    found = getattr(thing, _MARK, None)
    return found if isinstance(found, Tool) and found.function is thing else None


def is_wrapped(thing: Any) -> bool:
    """Whether another decorator stands above @tool: it copied the mark, but would not be called."""
    return isinstance(getattr(thing, _MARK, None), Tool) and declared_on(thing) is None


def place_of(function: Callable[..., Any]) -> str:
    inner: Any = inspect.unwrap(function)
    return f"tool {function.__name__} ({inner.__code__.co_filename}:{inner.__code__.co_firstlineno})"


def _checked_place(function: Any) -> str:
    if not inspect.isfunction(function):
        raise RoomError(
            f"@tool stands on {function!r}, which is not a plain function; "
            "write `@tool` directly above `def` or `async def`"
        )
    place = place_of(function)
    if inspect.isgeneratorfunction(function) or inspect.isasyncgenfunction(function):
        raise RoomError(f"{place}: a tool returns its result and cannot yield; return a list, or use ctx.progress")
    return place
