"""JSON Schemas, and values checked against them: ours, and those that others have written.

References lead nowhere but into the schema itself: a look-up would go wherever whoever wrote it says.

Patterns are searched for by an engine whose time grows with the text and no faster (linear_patterns.py). What that
engine does not know, such as a lookaround, is searched for by Python's `re` where the schema is of the room's own code,
and is not checked where it is foreign, that is, an MCP server's: the server checks for itself. A foreign schema has
further bounds, for there are other ways to make a check last: its size and depth, and the steps of one check.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from typing import Any

from chordage.orchestrator.core.errors import InvalidDecision
from chordage.orchestrator.gateways import linear_patterns

STEPS = 50_000  # of one check, of about 20 microseconds each: a second, when all are used up
MOST_NESTED = 120  # keywords in each other; each is a few calls, of which Python allows a thousand
MOST_COPIES = 2000  # of single characters that a foreign pattern may come to
COPIES_PER_STEP = 2000  # how many of them are tried on a character in the time of a step
PARTS_PER_STEP = 20  # of a list in the schema, such as an enumeration
TEXT_PER_STEP = 5000  # characters of a complaint, in which the value stands

_NOT_FOR_OTHERS = ("unevaluatedItems", "unevaluatedProperties")  # they go through the schema uncounted
Keyword = Callable[[Any, Any, Any, Any], Iterator[Any] | None]


class TooCostly(Exception):
    """The check was given up: it would take too long, or lead too deep."""


class BadPattern(ValueError):
    def __init__(self, place: str, pattern: str, why: str) -> None:
        super().__init__(f"{place}: {pattern!r:.200} is no regular expression: {why}")


def validator(schema: dict[str, Any], *, foreign: bool = False) -> Any:
    """Draft 2020-12; of a foreign schema the draft that it names. For one check: a foreign one has so many steps."""
    from jsonschema import validators  # heavy: only who needs it pays for it
    from referencing import Registry

    usual = validators.Draft202012Validator
    kind = validators.validator_for(schema, default=usual) if foreign else usual
    keywords = _Foreign(kind.VALIDATORS).keywords() if foreign else _Own(kind.VALIDATORS).keywords()
    extend: Any = validators.extend  # has no types
    return extend(kind, keywords)(schema, registry=Registry())


def check_schema(schema: dict[str, Any], checks: Any) -> None:
    """Raises SchemaError and BadPattern. The library would compile patterns with `re`, and some raise what it
    does not expect.
    """
    checks.check_schema(schema, format_checker=None)
    for place, pattern in patterns_in(schema):
        if linear_patterns.compiled(pattern) is None:
            try:
                re.compile(pattern)
            except (re.error, OverflowError, RecursionError) as error:
                raise BadPattern(place, pattern, str(error)) from error


def complaint_about(value: Any, schema: dict[str, Any]) -> str | None:
    """Why the value does not fit, in words; None when it does."""
    from jsonschema.exceptions import SchemaError, best_match
    from referencing.exceptions import Unresolvable

    checks = validator(schema)
    try:
        check_schema(schema, checks)
        worst = best_match(checks.iter_errors(value))
    except SchemaError as error:
        raise InvalidDecision(f"the question has a schema that is none: {error.message}", field="schema") from error
    except BadPattern as error:
        raise InvalidDecision(f"the question has a schema that is none: {error}", field="schema") from error
    except (TooCostly, RecursionError) as error:
        told = "the question has a schema that leads back to itself without an end"
        raise InvalidDecision(told, field="schema") from error
    except Unresolvable as error:
        told = f"the question has a schema with a reference that leads nowhere: {error.ref}"
        raise InvalidDecision(told, field="schema") from error
    if worst is None:
        return None
    where = ".".join(str(part) for part in worst.absolute_path)
    return f"{where}: {worst.message}" if where else str(worst.message)


def patterns_in(schema: Any) -> Iterator[tuple[str, str]]:
    """All that may be one, each with its place: also what stands under such a name in an example."""
    left: list[tuple[str, Any]] = [("$", schema)]
    while left:
        place, value = left.pop()
        match value:
            case dict() as found:
                if isinstance(found.get("pattern"), str):
                    yield f"{place}.pattern", found["pattern"]
                if isinstance(found.get("patternProperties"), dict):
                    yield from ((f"{place}.patternProperties", pattern) for pattern in found["patternProperties"])
                left += ((f"{place}.{key}", inner) for key, inner in found.items())
            case list() as listed:
                left += ((f"{place}[{number}]", inner) for number, inner in enumerate(listed))


def is_checked(pattern: str) -> bool:
    """Whether a foreign schema's pattern is looked at."""
    return linear_patterns.compiled(pattern) is not None and linear_patterns.copies_in(pattern) <= MOST_COPIES


class _Own:
    """Keywords of a validator that search in linear time where that can be."""

    def __init__(self, usual: dict[str, Keyword]) -> None:
        self._usual = usual
        self._nested = 0

    def keywords(self) -> dict[str, Keyword]:
        ours = {
            "pattern": self._pattern,
            "patternProperties": self._pattern_properties,
            "additionalProperties": self._additional_properties,
            "uniqueItems": self._unique_items,
        }
        every = {**self._usual, **{name: keyword for name, keyword in ours.items() if name in self._usual}}
        return {name: self._counted(keyword) for name, keyword in every.items()}

    def spend(self, steps: int) -> None:
        """Of a schema of one's own there may be any number."""

    def _counted(self, keyword: Keyword) -> Keyword:
        def counted(checks: Any, given: Any, value: Any, schema: Any) -> Iterator[Any]:
            parts = sum(len(one) for one in (given, value) if isinstance(one, list | dict))
            self.spend(1 + parts // PARTS_PER_STEP)
            if self._nested == MOST_NESTED:  # a schema may lead back to itself
                raise TooCostly
            self._nested += 1
            try:
                for error in keyword(checks, given, value, schema) or ():
                    self.spend(1 + len(error.message) // TEXT_PER_STEP)
                    yield error
            finally:
                self._nested -= 1

        return counted

    def finds(self, pattern: str, text: str) -> bool | None:
        """None: nobody knows."""
        if linear_patterns.compiled(pattern) is not None:
            return linear_patterns.is_in(pattern, text)
        try:
            return re.search(pattern, text) is not None
        except (re.error, OverflowError, RecursionError) as error:
            raise BadPattern("pattern", pattern, str(error)) from error

    def _pattern(self, checks: Any, pattern: str, value: Any, _schema: Any) -> Iterator[Any]:
        if checks.is_type(value, "string") and self.finds(pattern, value) is False:
            yield _complaint(f"{value!r} does not match {pattern!r}")

    def _pattern_properties(self, checks: Any, patterns: Any, value: Any, _schema: Any) -> Iterator[Any]:
        if not checks.is_type(value, "object"):
            return
        for pattern, inner in patterns.items():
            for key, item in value.items():
                if self.finds(pattern, key):
                    yield from checks.descend(item, inner, path=key, schema_path=pattern)

    def _additional_properties(self, checks: Any, given: Any, value: Any, schema: Any) -> Iterator[Any]:
        patterns = schema.get("patternProperties", {})
        if not patterns:
            yield from self._usual["additionalProperties"](checks, given, value, schema) or ()
            return
        if not checks.is_type(value, "object"):
            return
        known = schema.get("properties", {})
        extra = [
            key for key in value if key not in known and all(self.finds(pattern, key) is False for pattern in patterns)
        ]
        if checks.is_type(given, "object"):
            for key in extra:
                yield from checks.descend(value[key], given, path=key)
        elif not given and extra:
            listed = ", ".join(map(repr, patterns))
            yield _complaint(
                f"{', '.join(map(repr, extra))}: no property, and no match of any of the regexes: {listed}"
            )

    def _unique_items(self, checks: Any, wanted: Any, value: Any, _schema: Any) -> Iterator[Any]:
        if wanted and checks.is_type(value, "array") and len({_alike(item) for item in value}) < len(value):
            yield _complaint(f"{value!r} has non-unique elements")


class _Foreign(_Own):
    """The same, with so many steps and no more."""

    def __init__(self, usual: dict[str, Keyword]) -> None:
        super().__init__(usual)
        self._left = STEPS

    def keywords(self) -> dict[str, Keyword]:
        return super().keywords() | {name: _unchecked for name in _NOT_FOR_OTHERS if name in self._usual}

    def finds(self, pattern: str, text: str) -> bool | None:
        if not is_checked(pattern):
            return None
        self.spend(1 + linear_patterns.copies_in(pattern) * len(text) // COPIES_PER_STEP)
        return linear_patterns.is_in(pattern, text)

    def spend(self, steps: int) -> None:
        self._left -= steps
        if self._left < 0:
            raise TooCostly


def _unchecked(_checks: Any, _given: Any, _value: Any, _schema: Any) -> None:
    return None


def _complaint(message: str) -> Any:
    from jsonschema.exceptions import ValidationError

    return ValidationError(message)


def _alike(value: Any) -> Any:
    """The same for values that JSON Schema calls equal: 1 and 1.0 are, 1 and true are not."""
    match value:
        case bool():
            return ("flag", value)
        case list():
            return ("list", tuple(map(_alike, value)))
        case dict():
            return ("object", frozenset((key, _alike(item)) for key, item in value.items()))
        case _:
            return value
