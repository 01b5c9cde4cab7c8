"""What a tool's function says of itself: its parameters, and the descriptions in its docstring."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Annotated, Any, get_args, get_origin, get_type_hints

import docstring_parser
from docstring_parser import DocstringParam, DocstringRaises

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
    """The parameters that the model fills in, and the names of those that take the context."""

    parameters: tuple[Parameter, ...]
    context: tuple[str, ...]


def signature_of(function: Callable[..., Any], scope: Mapping[str, Any], place: str) -> Signature:
    """Raises RoomError for what no schema can express, and NameError while an annotation names something undefined."""
    parameters = list(inspect.signature(function).parameters.values())
    for parameter in parameters:
        _check_parameter(parameter, place)
    # The return annotation is left out: it may exist for the type checker only.
    names = {**getattr(inspect.unwrap(function), "__globals__", {}), **scope}
    holder = type("Parameters", (), {"__annotations__": {p.name: p.annotation for p in parameters}})
    hints = get_type_hints(holder, globalns=names, localns={}, include_extras=True)
    return Signature(
        parameters=tuple(
            Parameter(name=p.name, annotation=hints[p.name], default=p.default)
            for p in parameters
            if not _takes_context(hints[p.name])
        ),
        context=tuple(p.name for p in parameters if _takes_context(hints[p.name])),
    )


def _takes_context(hint: Any) -> bool:
    if get_origin(hint) is Annotated:
        return _takes_context(get_args(hint)[0])
    return hint is Context or Context in get_args(hint)


def _check_parameter(parameter: inspect.Parameter, place: str) -> None:
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


def described(docstring: str | None) -> tuple[str, dict[str, str]]:
    """The tool's description, and the description of each parameter; Google, NumPy, reST or Epydoc style.

    Parameters are taken out of the description, because their texts are in the schema, and so are the exceptions, which
    the model never sees.
    """
    text = docstring or ""
    try:
        parsed = docstring_parser.parse(text)
    except (docstring_parser.ParseError, LookupError, ValueError):  # it raises IndexError on some malformed sections
        return inspect.cleandoc(text), {}
    parameters = {param.arg_name: " ".join((param.description or "").split()) for param in parsed.params}
    parsed.meta = [part for part in parsed.meta if not isinstance(part, DocstringParam | DocstringRaises)]
    return docstring_parser.compose(parsed).strip(), parameters
