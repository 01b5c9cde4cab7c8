"""Values checked against JSON Schemas: those of the room's own code, and foreign ones, which MCP servers send.

References lead only into the schema itself: a look-up would go wherever the schema's author says.

Patterns are searched for with the regular-expression engine that comes with pydantic, whose time grows linearly with
the text. Python's `re` backtracks: a pattern of ten characters can keep it busy for years, and it holds the interpreter
meanwhile. The linear engine knows neither lookarounds nor back references. A schema of the room's own code may use
them, and `re` searches; in a foreign schema such a pattern is not checked, for the server checks its arguments itself.
A counted repetition compiles to one copy for each time, and each copy may cost a step for each character, so foreign
patterns are bounded by `copies_in` too.

A check of a foreign schema has further bounds: its depth, and a number of steps.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from functools import lru_cache
from itertools import islice
from typing import Any

import structlog

from chordage.orchestrator.core import bounds
from chordage.orchestrator.core.errors import InvalidDecision
from chordage.orchestrator.core.output import place

log = structlog.get_logger()

STEPS = 50_000  # of one check of a foreign schema, of about 20 microseconds each: about a second in all
MOST_NESTED = 120  # keywords in each other; each is a few Python calls, of which a thousand may be nested
MOST_COPIES = 2000  # of single characters that a foreign pattern may come to
COPIES_PER_STEP = 2000  # how many of them are tried on a character in the time of a step
PARTS_PER_STEP = 20  # of a list in the schema, such as an enumeration
TEXT_PER_STEP = 5000  # characters of an error message, which quotes the value
UNKNOWN_COPIES = 10**9
COMPLAINTS = 20  # of a list of a thousand wrong items the model reads about twenty
MOST_COUNTED = 1000  # complaints about arguments
COMPLAINT_LENGTH = 300

_UNCHECKED = ("unevaluatedItems", "unevaluatedProperties")  # the library walks the schema for them without our count
Keyword = Callable[[Any, Any, Any, Any], Iterator[Any] | None]


class TooCostly(Exception):
    """The check was stopped: it would take too long, or go too deep."""


class BadSchema(ValueError):
    """What was given is no JSON Schema. `path` leads to the place in it; None where the text names the place."""

    def __init__(self, why: str, path: Sequence[str | int] | None = None) -> None:
        super().__init__(why)
        self.path = path


def validator(schema: dict[str, Any], *, foreign: bool = False) -> Any:
    """A validator for one check: draft 2020-12, or the draft that a foreign schema names."""
    from jsonschema import validators  # heavy: only its users pay for it
    from referencing import Registry

    default = validators.Draft202012Validator
    kind = validators.validator_for(schema, default=default) if foreign else default
    keywords = _ForeignKeywords(kind.VALIDATORS).table() if foreign else _Keywords(kind.VALIDATORS).table()
    extend: Any = validators.extend  # has no types
    return extend(kind, keywords)(schema, registry=Registry())


def check_schema(schema: dict[str, Any], checks: Any) -> None:
    """Raises BadSchema. Patterns are looked at here: the library would compile them with `re`, and does not expect all
    that `re` raises.
    """
    from jsonschema.exceptions import SchemaError

    try:
        checks.check_schema(schema, format_checker=None)
    except SchemaError as error:
        raise BadSchema(error.message, list(error.absolute_path)) from error
    for at, pattern in patterns_in(schema):
        if _compiled(pattern) is None:
            try:
                re.compile(pattern)
            except (re.error, OverflowError, RecursionError) as error:
                raise BadSchema(f"{at}: {pattern!r:.200} is no regular expression: {error}") from error


def complaint_about(value: Any, schema: dict[str, Any]) -> str | None:
    """Why the answer to a question does not fit the question's schema; None when it fits. Raises InvalidDecision."""
    from jsonschema.exceptions import best_match
    from referencing.exceptions import Unresolvable

    checks = validator(schema)
    try:
        check_schema(schema, checks)
        worst = best_match(checks.iter_errors(value))
    except BadSchema as error:
        raise InvalidDecision(f"the question has a schema that is none: {error}", field="schema") from error
    except (TooCostly, RecursionError) as error:
        why = "the question has a schema that leads back to itself without an end"
        raise InvalidDecision(why, field="schema") from error
    except Unresolvable as error:
        why = f"the question has a schema with a reference that leads nowhere: {error.ref}"
        raise InvalidDecision(why, field="schema") from error
    if worst is None:
        return None
    where = ".".join(str(part) for part in worst.absolute_path)
    return f"{where}: {worst.message}" if where else str(worst.message)


def fault_of(schema: dict[str, Any]) -> str | None:
    """Why no value can be checked against this schema; None when it can be used. References must stay inside it."""
    try:
        check_schema(schema, validator(schema))
    except BadSchema as error:
        return str(error) if error.path is None else f"{place(error.path)}: {error}"
    dangling = _dangling(schema)
    remedy = "it must point into the schema itself, as #/$defs/name does"
    return None if dangling is None else f"the reference {dangling!r} leads nowhere; {remedy}"


def _dangling(schema: dict[str, Any]) -> str | None:
    """The first reference that leads nowhere: it would fail in the middle of a turn, when it is first followed."""
    from referencing import Registry
    from referencing.exceptions import Unresolvable
    from referencing.jsonschema import DRAFT202012

    root = DRAFT202012.create_resource(schema)
    resolver = Registry().resolver_with_root(root)
    left = [(root, resolver)]
    while left:
        resource, inside = left.pop()
        for reference in _references(resource.contents):
            try:
                inside.lookup(reference)
            except Unresolvable:
                return reference
        left += [(inner, inside.in_subresource(inner)) for inner in resource.subresources()]
    return None


def _references(schema: Any) -> list[str]:
    return [schema[key] for key in ("$ref", "$dynamicRef") if key in schema] if isinstance(schema, dict) else []


def fault_of_tool(schema: dict[str, Any]) -> str | None:
    """Why a foreign tool cannot be offered. One schema that a provider refuses would cost every call of the model, with
    all other tools.
    """
    if (why := bounds.fault_of_value(schema, most_bytes=bounds.SCHEMA_BYTES)) is not None:
        return f"its schema {why}"
    if schema.get("type", "object") != "object":
        return f"its arguments are no object but {schema['type']!r}"
    try:
        check_schema(schema, validator(schema, foreign=True))
    except BadSchema as error:
        return f"its schema is none: {error}"
    except Exception as error:  # the library takes it for granted that "$schema" and "$id" are addresses
        return f"its schema is none: {error!r}"
    return None


def complaints(arguments: dict[str, Any], schema: dict[str, Any], tool: str) -> list[str]:
    """What is wrong with the arguments of a foreign tool, a line each. Empty also where that takes too long to check:
    who carries the call out checks it.
    """
    from referencing.exceptions import Unresolvable

    try:
        errors = validator(schema, foreign=True).iter_errors(arguments)
        lines = [_complaint(error) for error in islice(errors, MOST_COUNTED)]
    except Unresolvable:
        return []
    except (TooCostly, RecursionError):
        log.warning("arguments are not checked: it would take too long", tool=tool)
        return []
    except Exception as error:  # older drafts leave open what a "$ref" or a "type" is, and the library raises anything
        log.warning("arguments are not checked: the schema cannot be followed", tool=tool, error=repr(error))
        return []
    more = [f"- and {len(lines) - COMPLAINTS} more"] if len(lines) > COMPLAINTS else []
    return lines[:COMPLAINTS] + more


def _complaint(error: Any) -> str:
    where = ".".join(str(part) for part in error.absolute_path)
    text = error.message if len(error.message) <= COMPLAINT_LENGTH else f"{error.message[:COMPLAINT_LENGTH]}..."
    return f"- {where}: {text}" if where else f"- {text}"


def patterns_in(schema: Any) -> Iterator[tuple[str, str]]:
    """Every text under a key for patterns, with its place; also where such a key is part of an example."""
    left: list[tuple[str, Any]] = [("$", schema)]
    while left:
        place, value = left.pop()
        match value:
            case dict():
                if isinstance(value.get("pattern"), str):
                    yield f"{place}.pattern", value["pattern"]
                if isinstance(value.get("patternProperties"), dict):
                    yield from ((f"{place}.patternProperties", pattern) for pattern in value["patternProperties"])
                left += ((f"{place}.{key}", inner) for key, inner in value.items())
            case list():
                left += ((f"{place}[{number}]", inner) for number, inner in enumerate(value))


def is_checked(pattern: str) -> bool:
    """Whether a check of a foreign schema applies this pattern."""
    return _compiled(pattern) is not None and copies_in(pattern) <= MOST_COPIES


class _Keywords:
    """The library's keywords, counted, and with linear patterns where that is possible."""

    def __init__(self, usual: dict[str, Keyword]) -> None:
        self._usual = usual
        self._nested = 0

    def table(self) -> dict[str, Keyword]:
        ours = {
            "pattern": self._pattern,
            "patternProperties": self._pattern_properties,
            "additionalProperties": self._additional_properties,
            "uniqueItems": self._unique_items,
        }
        every = {**self._usual, **{name: keyword for name, keyword in ours.items() if name in self._usual}}
        return {name: self._counted(keyword) for name, keyword in every.items()}

    def spend(self, steps: int) -> None:
        """A schema of the room's own code has no limit."""

    def _counted(self, keyword: Keyword) -> Keyword:
        def counted(checks: Any, wanted: Any, value: Any, schema: Any) -> Iterator[Any]:
            parts = sum(len(part) for part in (wanted, value) if isinstance(part, list | dict))
            self.spend(1 + parts // PARTS_PER_STEP)
            if self._nested == MOST_NESTED:  # a schema may lead back to itself
                raise TooCostly
            self._nested += 1
            try:
                for error in keyword(checks, wanted, value, schema) or ():
                    self.spend(1 + len(error.message) // TEXT_PER_STEP)
                    yield error
            finally:
                self._nested -= 1

        return counted

    def matches(self, pattern: str, text: str) -> bool | None:
        """Whether the pattern is found anywhere in the text; None where it is not checked."""
        if _compiled(pattern) is not None:
            return _is_in(pattern, text)
        try:
            return re.search(pattern, text) is not None
        except (re.error, OverflowError, RecursionError) as error:
            raise BadSchema(f"pattern: {pattern!r:.200} is no regular expression: {error}") from error

    def _pattern(self, checks: Any, pattern: str, value: Any, _schema: Any) -> Iterator[Any]:
        if checks.is_type(value, "string") and self.matches(pattern, value) is False:
            yield _error(f"{value!r} does not match {pattern!r}")

    def _pattern_properties(self, checks: Any, patterns: Any, value: Any, _schema: Any) -> Iterator[Any]:
        if not checks.is_type(value, "object"):
            return
        for pattern, inner in patterns.items():
            for key, item in value.items():
                if self.matches(pattern, key):
                    yield from checks.descend(item, inner, path=key, schema_path=pattern)

    def _additional_properties(self, checks: Any, wanted: Any, value: Any, schema: Any) -> Iterator[Any]:
        patterns = schema.get("patternProperties", {})
        if not patterns:
            yield from self._usual["additionalProperties"](checks, wanted, value, schema) or ()
            return
        if not checks.is_type(value, "object"):
            return
        known = schema.get("properties", {})
        extra = [
            key
            for key in value
            if key not in known and all(self.matches(pattern, key) is False for pattern in patterns)
        ]
        if checks.is_type(wanted, "object"):
            for key in extra:
                yield from checks.descend(value[key], wanted, path=key)
        elif not wanted and extra:
            listed = ", ".join(map(repr, patterns))
            yield _error(f"{', '.join(map(repr, extra))}: no property, and no match of any of the regexes: {listed}")

    def _unique_items(self, checks: Any, wanted: Any, value: Any, _schema: Any) -> Iterator[Any]:
        if wanted and checks.is_type(value, "array") and len({_hashable(item) for item in value}) < len(value):
            yield _error(f"{value!r} has non-unique elements")


class _ForeignKeywords(_Keywords):
    """The same within a number of steps."""

    def __init__(self, usual: dict[str, Keyword]) -> None:
        super().__init__(usual)
        self._left = STEPS

    def table(self) -> dict[str, Keyword]:
        def passes(_checks: Any, _given: Any, _value: Any, _schema: Any) -> None:
            return None

        return super().table() | {name: passes for name in _UNCHECKED if name in self._usual}

    def matches(self, pattern: str, text: str) -> bool | None:
        if not is_checked(pattern):
            return None
        self.spend(1 + copies_in(pattern) * len(text) // COPIES_PER_STEP)
        return _is_in(pattern, text)

    def spend(self, steps: int) -> None:
        self._left -= steps
        if self._left < 0:
            raise TooCostly


def _error(message: str) -> Any:
    from jsonschema.exceptions import ValidationError

    return ValidationError(message)


def _hashable(value: Any) -> Any:
    """Equal for values that JSON Schema calls equal: 1 and 1.0 are, 1 and true are not."""
    match value:
        case bool():
            return ("flag", value)
        case list():
            return ("list", tuple(map(_hashable, value)))
        case dict():
            return ("object", frozenset((key, _hashable(item)) for key, item in value.items()))
        case _:
            return value


@lru_cache(maxsize=1024)
def _compiled(pattern: str) -> Any | None:
    """None: the linear engine does not know the syntax, or the pattern would be too large."""
    from pydantic_core import SchemaError, SchemaValidator, core_schema

    try:
        return SchemaValidator(core_schema.str_schema(pattern=pattern, regex_engine="rust-regex"))
    except (SchemaError, UnicodeError):
        return None


def _is_in(pattern: str, text: str) -> bool:
    from pydantic_core import ValidationError

    engine = _compiled(pattern)
    assert engine is not None
    try:
        engine.validate_python(text)
    except ValidationError:
        return False
    return True


_COUNTED = re.compile(r"\{(\d*)(,?)(\d*)\}")
_ESCAPED = re.compile(r"\\(?:[pP]\{[^}]*\}|[xuU]\{[^}]*\}|.)", re.DOTALL)
_GROUP = re.compile(r"\((?:\?(?::|i\)|P?<[A-Za-z_]\w*>))?")


@lru_cache(maxsize=1024)
def copies_in(pattern: str) -> int:
    """How many single characters the compiled pattern has at least, each counted as often as it is repeated."""
    outer: list[tuple[int, int]] = []
    total = last = place = 0
    while place < len(pattern):
        match pattern[place]:
            case "(":
                opened = _GROUP.match(pattern, place)
                if opened is None or pattern[opened.end() : opened.end() + 1] == "?":
                    return UNKNOWN_COPIES  # flags: with some of them white space counts no more
                place = opened.end()
                if not opened[0].endswith(")"):
                    outer.append((total, last))
                    total = last = 0
            case ")":
                if not outer:
                    return UNKNOWN_COPIES
                inner = total
                total, _ = outer.pop()
                total, last = total + inner, inner
                place += 1
            case "{" if counted := _COUNTED.match(pattern, place):
                times = int(counted[3] or counted[1] or 0)
                total += last * max(times - 1, 0)
                last *= max(times, 1)
                place = counted.end()
            case "[":
                total, last = total + 1, 1
                place = _end_of_class(pattern, place)
            case "\\":
                escaped = _ESCAPED.match(pattern, place)
                total, last = total + 1, 1
                place = escaped.end() if escaped else len(pattern)
            case "*" | "+" | "?" | "|" | "^" | "$":
                place += 1
            case _:
                total, last = total + 1, 1
                place += 1
    return total


def _end_of_class(pattern: str, place: int) -> int:
    depth, first = 0, -1
    while place < len(pattern):
        match pattern[place]:
            case "\\":
                place += 1
            case "[":
                depth, first = depth + 1, place
            case "]" if place > first + (2 if pattern[first + 1 : first + 2] == "^" else 1):
                depth -= 1
                if not depth:
                    return place + 1
        place += 1
    return place
