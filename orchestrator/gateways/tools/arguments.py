"""A tool's arguments as a JSON Schema for the model, and the arguments that a model sent, checked against it.

The fields of the pydantic model are numbered and carry the parameters' names as aliases: any name a Python function may
have (`schema`, `_hidden`, `model_dump`) is then a fine parameter.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from types import NoneType, UnionType
from typing import Annotated, Any, Literal, TypeVar, Union, get_args, get_origin

from pydantic import BaseModel, ConfigDict, Field, PydanticUserError, ValidationError, create_model
from pydantic.fields import FieldInfo
from pydantic.json_schema import GenerateJsonSchema
from pydantic_core import ErrorDetails

from chordage.orchestrator.core.errors import RoomError
from chordage.orchestrator.gateways.schemas import COMPLAINTS
from chordage.orchestrator.gateways.tools.signature import MISSING, Parameter
from chordage.orchestrator.system import user_code

T = TypeVar("T")

# Types that pydantic checks without any code of the user's, by themselves or of one another.
PLAIN = {str, int, float, bool, None, NoneType, Any, list, dict, tuple, set, Union, UnionType}
SHOWN_LENGTH = 80


class InvalidArguments(Exception):
    """The text lists what is wrong, one line each."""


class TerseSchema(GenerateJsonSchema):
    """Without a title for each field, and silent about defaults that JSON cannot show."""

    ignored_warning_kinds = {"skipped-choice", "non-serializable-default"}  # noqa: RUF012 - as in the base class

    def field_title_should_be_set(self, schema: Any) -> bool:  # noqa: ARG002
        return False


class Arguments:
    def __init__(self, parameters: tuple[Parameter, ...], described: dict[str, str], place: str) -> None:
        self._names = {f"arg_{number}": p.name for number, p in enumerate(parameters)}
        try:
            self._model = _model(self._names, parameters)
            self.schema = _schema(self._model, described)
        except NameError:
            raise
        except user_code.failures() as error:
            raise RoomError(
                f"{place}: {_undescribable(parameters)} cannot be described in JSON Schema: {error}"
            ) from error
        _check_aliases(self._model, place)
        is_plain = all(_is_plain(p.annotation) and _runs_no_code(p.default) for p in parameters)
        # In the main thread of a process, where a pool of processes runs its calls, a call of users' code takes a
        # thread of its own, and to start one costs as much as all else here.
        self._check: Callable[[Callable[[], Any]], Any] = _at_once if is_plain else user_code.call

    def fit(self, arguments: dict[str, Any]) -> dict[str, Any]:
        """The arguments as the function wants them. Raises InvalidArguments."""
        try:
            # As JSON, not as Python: what a model sends is JSON, and a strict date is then a string and not a date.
            sent = json.dumps(arguments)
            filled = self._check(lambda: self._model.model_validate_json(sent))
        except ValidationError as error:
            raise InvalidArguments(self._complaints(error)) from error
        except Exception as error:  # a user's validator may raise anything
            why = f"{type(error).__name__}: {user_code.words_of(error)}"
            raise InvalidArguments(f"- they cannot be checked: {why}") from error
        return {name: getattr(filled, field) for field, name in self._names.items()}

    def _complaints(self, error: ValidationError) -> str:
        details = error.errors(include_url=False, include_context=False)
        lines = [f"- {self._complaint(detail)}" for detail in details[:COMPLAINTS]]
        if len(details) > COMPLAINTS:
            lines.append(f"- and {len(details) - COMPLAINTS} more")
        return "\n".join(lines)

    def _complaint(self, detail: ErrorDetails) -> str:
        where = ".".join(str(part) for part in detail["loc"]) or "arguments"
        match detail["type"]:
            case "missing":
                return f"{where}: is missing"
            case "extra_forbidden" if len(detail["loc"]) == 1:
                return f"{where}: there is no such parameter; there are: {', '.join(self.known) or 'none'}"
            case "extra_forbidden":
                return f"{where}: is not allowed here"
        return f"{where}: {detail['msg']}; got {_shortened(repr(detail['input']))}"

    @property
    def known(self) -> list[str]:
        return list(self.schema.get("properties", {}))


def _model(names: dict[str, str], parameters: tuple[Parameter, ...]) -> type[BaseModel]:
    fields: dict[str, Any] = {
        field: (_aliased(p), ... if p.default is MISSING else p.default)
        for field, p in zip(names, parameters, strict=True)
    }
    return create_model("Arguments", __config__=ConfigDict(extra="forbid"), **fields)


def _aliased(parameter: Parameter) -> Any:
    """With the parameter's name as alias, before anything the user says in an Annotated: an alias of theirs wins."""
    whole = parameter.annotation
    base, *annotations = get_args(whole) if get_origin(whole) is Annotated else (whole,)
    return Annotated[(base, Field(alias=parameter.name), *annotations)]


def _schema(model: type[BaseModel], described: dict[str, str]) -> dict[str, Any]:
    try:
        schema = model.model_json_schema(schema_generator=TerseSchema)
    except PydanticUserError as error:
        if error.code == "class-not-fully-defined":  # a model of the user's names a class further down
            raise NameError(error.message) from error
        raise
    schema.pop("title", None)
    for name, text in described.items():
        schema["properties"].get(name, {}).setdefault("description", text)
    return schema


def _is_plain(annotation: Any) -> bool:
    origin, inner = get_origin(annotation), get_args(annotation)
    if origin is Literal:
        return True
    if origin is Annotated:
        base, *notes = inner
        return _is_plain(base) and all(isinstance(note, str | FieldInfo) and _runs_no_code(note) for note in notes)
    return (annotation if origin is None else origin) in PLAIN and all(map(_is_plain, inner))


def _runs_no_code(default: Any) -> bool:
    """A field may have a function that makes its default, and checks of its own."""
    return not isinstance(default, FieldInfo) or (default.default_factory is None and not default.metadata)


def _at_once(check: Callable[[], T]) -> T:
    return check()


def _undescribable(parameters: tuple[Parameter, ...]) -> str:
    return ", ".join(f"parameter {p.name}" for p in parameters if not _is_describable(p)) or "the parameters together"


def _is_describable(parameter: Parameter) -> bool:
    try:
        _schema(_model({"arg_0": parameter.name}, (parameter,)), {})
    except Exception:
        return False
    return True


def _check_aliases(model: type[BaseModel], place: str) -> None:
    aliases = [field.alias for field in model.model_fields.values()]
    for alias in sorted({str(alias) for alias in aliases if aliases.count(alias) > 1}):
        raise RoomError(f"{place}: two parameters are called {alias!r} by the model; change one alias")


def _shortened(text: str) -> str:
    return text if len(text) <= SHOWN_LENGTH else f"{text[:SHOWN_LENGTH]}..."
