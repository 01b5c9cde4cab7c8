"""The parameters of a tool's function: which the model fills in, and which take the context."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Annotated, Any, get_args, get_origin, get_type_hints

from chordage.orchestrator.core.errors import RoomError
from chordage.orchestrator.gateways.tools.context import Context

MISSING = inspect.Parameter.empty
_BY_NAME = {inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY}


@dataclass(frozen=True, kw_only=True, slots=True)
class Parameter:
    name: str
    annotation: Any
    default: Any = MISSING


@dataclass(frozen=True, kw_only=True, slots=True)
class Signature:
    parameters: tuple[Parameter, ...]
    context: tuple[str, ...]  # the names under which the function wants the context


def read(function: Callable[..., Any], around: Mapping[str, Any], place: str) -> Signature:
    """Raises RoomError for what no schema can say, and NameError while an annotation names something not yet there."""
    parameters = [_checked(parameter, place) for parameter in inspect.signature(function).parameters.values()]
    hints = _hints(function, {p.name: p.annotation for p in parameters}, around)
    return Signature(
        parameters=tuple(
            Parameter(name=p.name, annotation=hints[p.name], default=p.default)
            for p in parameters
            if not takes_context(hints[p.name])
        ),
        context=tuple(p.name for p in parameters if takes_context(hints[p.name])),
    )


def takes_context(hint: Any) -> bool:
    if get_origin(hint) is Annotated:
        return takes_context(get_args(hint)[0])
    return hint is Context or Context in get_args(hint)


def _checked(parameter: inspect.Parameter, place: str) -> inspect.Parameter:
    name = parameter.name
    if parameter.kind not in _BY_NAME:
        raise RoomError(
            f"{place}: parameter {parameter} cannot be given by name, and a model gives all arguments by name; "
            "list each parameter, without *, ** and /"
        )
    if parameter.annotation is MISSING and name in {"self", "cls"}:
        raise RoomError(f"{place}: a tool is a plain function, not a method; move it out of its class")
    if parameter.annotation is MISSING:
        raise RoomError(f"{place}: parameter {name} has no annotation; write its type, as in `{name}: str`")
    return parameter


def _hints(function: Callable[..., Any], annotations: dict[str, Any], around: Mapping[str, Any]) -> dict[str, Any]:
    """The annotations as types. The return annotation is left out: it may exist for the type checker only."""
    names = {**getattr(inspect.unwrap(function), "__globals__", {}), **around}
    holder = type("Parameters", (), {"__annotations__": annotations})
    return get_type_hints(holder, globalns=names, localns={}, include_extras=True)
