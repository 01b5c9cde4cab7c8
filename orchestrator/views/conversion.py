"""One way to make a view of a row of the database, or of a record."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import MISSING, fields
from enum import Enum
from functools import cache
from typing import Any, TypeVar, get_args, get_type_hints

V = TypeVar("V")


def view_of(view: type[V], source: Any, /, **values: Any) -> V:
    """A view with these `values`, and the others from the columns or attributes of the same names.

    A field that the source lacks gets its default; a source of None lacks all. The words of a row become enums. A word
    that only a newer version knows stays as it is.
    """
    for name, enum in _enums_of(view).items():  # type: ignore[arg-type]  # a class is hashable
        if name in values:
            continue
        value = source.get(name, MISSING) if isinstance(source, Mapping) else getattr(source, name, MISSING)
        if value is not MISSING:
            values[name] = enum(value) if enum is not None and value in set(enum) else value
    return view(**values)


@cache
def _enums_of(view: type[Any]) -> dict[str, type[Enum] | None]:
    """The fields of a view, each with the enum of its values."""
    hints = get_type_hints(view)
    kinds = {field.name: (hints[field.name], *get_args(hints[field.name])) for field in fields(view)}
    return {
        name: next((kind for kind in some if isinstance(kind, type) and issubclass(kind, Enum)), None)
        for name, some in kinds.items()
    }
