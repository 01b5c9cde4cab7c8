"""`@tool`: makes a plain function, sync or async, something an agent may call.

The function stays what it was; the declaration is an attribute of it. Its schema is made at once, so that a mistake
shows when the module is imported. Only where an annotation names a class that is defined further down does the schema
wait for the first use.
"""

from __future__ import annotations

import contextlib
import inspect
import math
import re
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any, TypeVar, overload

from chordage.orchestrator.core.agent import Effect, Placement, ToolSpec
from chordage.orchestrator.core.errors import RoomError
from chordage.orchestrator.core.placement import REPEATABLE
from chordage.orchestrator.gateways.tools.signature import Signature, described, signature_of

if TYPE_CHECKING:
    from chordage.orchestrator.gateways.tools.arguments import Arguments

F = TypeVar("F", bound=Callable[..., Any])
_MARK = "__chordage_tool__"
_MAY_BE_NONE = {"name", "retry_on", "reconcile"}  # as if it were not given
_NAME = re.compile(r"[A-Za-z0-9_-]{1,64}")  # that every provider takes


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
    placement: Placement | str = Placement.AUTO,
) -> Callable[[F], F]: ...
def tool(function: Callable[..., Any] | None = None, /, **given: Any) -> Any:
    """Declare a function as a tool.

    `effect` says what may be done with a call whose worker died inside it: "pure", "idempotent" (run again),
    "reconcilable" (`reconcile` is asked) or "unsafe" (a person is asked). `retries` says how often a call that raised
    one of `retry_on` (default: any exception) may be tried again; one that ran into its `timeout` is not. `reconcile`
    takes the arguments it names and the context, and returns the call's result, or None if the call is known not to
    have happened. `name` is the function's own unless given, `timeout` is in seconds, and of a result of more than
    `result_limit` characters the model reads the beginning. `placement` says where its calls run: "spread" is for a
    tool that keeps its process busy, "here" and "together" for one that does not; "auto" goes by how long they take.
    """
    if unknown := sorted(given.keys() - Options.__slots__):
        takes = ", ".join(Options.__slots__)
        raise TypeError(f"tool() got an unexpected keyword argument {unknown[0]!r}; it takes {takes}")
    scope = sys._getframe(1).f_locals  # noqa: SLF001 - annotations of a nested function may name what is defined there

    def declare(function: Callable[..., Any]) -> Callable[..., Any]:
        place = _checked_place(function)
        own = {key: value for key, value in given.items() if value is not None or key not in _MAY_BE_NONE}
        options = _checked_options(place, {"name": function.__name__, **own})
        nested = "<locals>" in function.__qualname__
        declared = Tool(function, options, dict(scope) if nested else {})
        with contextlib.suppress(NameError):  # a name that is defined further down in the module
            _ = declared.arguments, declared.hook_wants
        setattr(function, _MARK, declared)
        return function

    return declare if function is None else declare(function)


def declared_on(thing: Any) -> Tool | None:
    """The tool that this object is, if it is one."""
    declared = getattr(thing, _MARK, None)
    return declared if isinstance(declared, Tool) and declared.function is thing else None


def is_wrapped(thing: Any) -> bool:
    """Whether another decorator is above @tool: it copied the attribute, but would not be called."""
    return isinstance(getattr(thing, _MARK, None), Tool) and declared_on(thing) is None


@dataclass(frozen=True, kw_only=True, slots=True)
class Options:
    """The arguments of `@tool(...)`, checked."""

    name: str
    effect: Effect = Effect.UNSAFE
    timeout: float = 60.0
    retries: int = 0
    retry_on: tuple[type[Exception], ...] = (Exception,)
    result_limit: int = 65_536
    reconcile: Callable[..., Any] | None = None
    placement: Placement = Placement.AUTO

    def spec(self, description: str, schema: dict[str, Any]) -> ToolSpec:
        return ToolSpec(
            name=self.name,
            description=description,
            schema=schema,
            effect=self.effect,
            timeout=self.timeout,
            retries=self.retries,
            result_limit=self.result_limit,
            placement=self.placement,
        )


class Tool:
    """A function as an agent calls it. `scope`: names that its annotations may use besides the module's."""

    def __init__(self, function: Callable[..., Any], options: Options, scope: Mapping[str, Any]) -> None:
        self.function = function
        self.options = options
        self._scope = scope

    @property
    def name(self) -> str:
        return self.options.name

    @property
    def place(self) -> str:
        return _place_of(self.function)

    @cached_property
    def wants(self) -> Signature:
        try:
            return signature_of(self.function, self._scope, self.place)
        except (SyntaxError, TypeError) as error:
            raise RoomError(f"{self.place}: an annotation is not a type: {error}") from error

    @cached_property
    def arguments(self) -> Arguments:
        from chordage.orchestrator.gateways.tools.arguments import (
            Arguments,  # pydantic is heavy: `import chordage` alone must not pay for it
        )

        return Arguments(self.wants.parameters, described(self.function.__doc__)[1], self.place)

    @cached_property
    def hook_wants(self) -> Signature | None:
        """The parameters of the reconcile hook."""
        if self.options.reconcile is None:
            return None
        signature = signature_of(self.options.reconcile, self._scope, f"{self.place}: reconcile")
        known = {parameter.name for parameter in self.wants.parameters}
        if strange := [parameter.name for parameter in signature.parameters if parameter.name not in known]:
            raise RoomError(
                f"{self.place}: reconcile asks for {', '.join(strange)}, which the tool does not have; "
                "it may take the tool's parameters and a Context"
            )
        return signature

    @cached_property
    def spec(self) -> ToolSpec:
        """Raises RoomError where an annotation names nothing that exists at run time."""
        try:
            schema = self.arguments.schema
        except NameError as error:
            raise RoomError(
                f"{self.place}: an annotation cannot be read: {error}; "
                "import the name for real, not under TYPE_CHECKING, or define it"
            ) from error
        return self.options.spec(described(self.function.__doc__)[0], schema)


def _place_of(function: Callable[..., Any]) -> str:
    inner: Any = inspect.unwrap(function)
    return f"tool {function.__name__} ({inner.__code__.co_filename}:{inner.__code__.co_firstlineno})"


def _checked_place(function: Any) -> str:
    if not inspect.isfunction(function):
        raise RoomError(
            f"@tool decorates {function!r}, which is not a plain function; "
            "write `@tool` directly above `def` or `async def`"
        )
    place = _place_of(function)
    if inspect.isgeneratorfunction(function) or inspect.isasyncgenfunction(function):
        raise RoomError(f"{place}: a tool returns its result and cannot yield; return a list, or use ctx.progress")
    return place


def _checked_options(place: str, given: dict[str, Any]) -> Options:
    """Raises RoomError with the place of the function and what to write instead."""
    options = Options(**given)

    def wrong(option: str, wanted: str) -> RoomError:
        return RoomError(f"{place}: {option} must be {wanted}; got {given[option]!r}")

    if options.effect not in list(Effect):
        raise wrong("effect", f"one of {', '.join(Effect)}")
    if options.effect == Effect.RECONCILABLE and not callable(options.reconcile):
        raise RoomError(
            f"{place}: effect reconcilable needs reconcile=<function>, "
            "which says what became of a call whose worker died"
        )
    if options.effect != Effect.RECONCILABLE and options.reconcile is not None:
        raise RoomError(f"{place}: reconcile is asked only for effect='reconcilable'; got effect='{options.effect}'")
    if options.placement not in list(Placement):
        raise wrong("placement", f"one of {', '.join(Placement)}")
    if options.placement == Placement.HERE and options.effect not in REPEATABLE:
        raise RoomError(
            f"{place}: placement here is for effect pure or idempotent, because other calls of the process would wait "
            "for this one; an agent's file may say it, under [placements]"
        )
    if not isinstance(options.name, str) or not _NAME.fullmatch(options.name):
        raise wrong("name", "1 to 64 letters, digits, _ or -")
    timeout = options.timeout
    if not isinstance(timeout, int | float) or isinstance(timeout, bool) or not 0 < timeout < math.inf:
        raise wrong("timeout", "a number of seconds, more than 0")
    if not _is_whole(options.retries) or options.retries < 0:
        raise wrong("retries", "a whole number, 0 or more")
    if not _is_whole(options.result_limit) or options.result_limit < 1:
        raise wrong("result_limit", "a whole number of characters, 1 or more")
    kinds = options.retry_on if isinstance(options.retry_on, tuple) else (options.retry_on,)
    if not kinds or not all(inspect.isclass(kind) and issubclass(kind, Exception) for kind in kinds):
        raise wrong("retry_on", "an exception class, or a tuple of them")
    if "retry_on" in given and not options.retries:
        raise RoomError(f"{place}: retry_on does nothing without retries; add retries=2, or leave retry_on out")
    return replace(
        options, effect=Effect(options.effect), placement=Placement(options.placement), timeout=float(timeout),
        retry_on=kinds,
    )  # fmt: skip


def _is_whole(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)
