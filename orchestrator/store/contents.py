"""The types of columns that hold contents: what people, models and tools have written. A cipher encrypts all of them.

`Contents` marks such a column, and `schema.CONTENTS` lists them. On a store without a cipher the type is Text or JSON
itself, and every statement is as it would be without it. On a store with a cipher:

- A value that is stored has to come with its owner (`owned`, or the bind of its owner in a prepared statement). One
  without is a bug, and refused: what it is bound to could not be checked when it is read.
- A SELECT of the column reads the owner from the same row, and the value is decrypted for that owner.
- In the column is text that begins with `core.contents.MARK`; in a JSON column that text as a JSON string. Values from
  before there was a cipher are read as they are.

Not promised: that plain text which was written into the database by others is refused.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import Enum
from typing import Any

from sqlalchemy import (
    JSON,
    Case,
    Cast,
    Dialect,
    Label,
    Null,
    ScalarSelect,
    Table,
    Text,
    case,
    cast,
    func,
    literal_column,
    type_coerce,
)
from sqlalchemy.sql.elements import ColumnClause
from sqlalchemy.sql.functions import FunctionElement
from sqlalchemy.types import TypeDecorator, TypeEngine

from chordage.orchestrator.core.contents import (
    MARK,
    Cipher,
    CipherContext,
    decrypt,
    decrypt_json,
    encrypt,
    encrypt_json,
)
from chordage.orchestrator.store.database import CIPHER, Tx

# The column that says to whom the contents of a row belong. It never changes, and no row is moved to another.
OWNERS = {
    "agent_versions": "digest", "bulk_jobs": "id", "calls": "thread_id", "caller_audit": "about",
    "cipher_keys": "key_id", "decisions": "suspension_id", "forks": "turn_id", "journal": "thread_id", "ops": "turn_id",
    "outbox": "thread_id", "plugin_state": "owner", "polls": "name", "refusals": "source", "runs": "thread_id",
    "stepped": "turn_id", "suspensions": "thread_id", "turns": "thread_id",
}  # fmt: skip
# A trigger copies this column into the body of a note in the journal, of the same thread.
_COPIED_BY_TRIGGER = "turns.detail"
_END = "\x1f"


class ContentsForm(Enum):
    TEXT = "text"
    JSON = "json"
    JSON_TEXT = "json text"  # JSON that is read as its text


class Contents(TypeDecorator[Any]):
    """`place`: table and column. `length`: only the beginning is read, of so many characters."""

    impl = Text
    cache_ok = True

    def __init__(self, place: str, form: ContentsForm = ContentsForm.TEXT, length: int | None = None) -> None:
        super().__init__()
        self.place = place
        self.form = form
        self.length = length

    @property
    def owner(self) -> str:
        return OWNERS[self.place.partition(".")[0]]

    def load_dialect_impl(self, dialect: Dialect) -> TypeEngine[Any]:
        cipher = cipher_of(dialect)
        if cipher is None:
            return JSON(none_as_null=True) if self.form is ContentsForm.JSON else Text()
        return _Encrypted(self, cipher)


def json_text(column: Any) -> Cast[Any]:
    """A JSON column as its text."""
    return cast(column, Contents(column.type.place, ContentsForm.JSON_TEXT))


def beginning(column: Any, length: int) -> Any:
    """The first characters of a text."""
    return func.substr(column, 1, length, type_=Contents(column.type.place, ContentsForm.TEXT, length))


def cipher_of(dialect: Dialect) -> Cipher | None:
    cipher: Cipher | None = getattr(dialect, CIPHER, None)
    return cipher


def is_encrypted(tx: Tx) -> bool:
    return cipher_of(tx.dialect) is not None


@dataclass(frozen=True, slots=True)
class Owned:
    """A value with its owner. Owner None: a text of our own, which is stored as it is."""

    owner: str | None
    value: Any


def owned(tx: Tx, table: Table, values: Mapping[str, Any], owner: str | None = "") -> Mapping[str, Any]:
    """Values of columns of one row, to be stored. `owner`: where it is not among the values; None: no contents."""
    if cipher_of(tx.dialect) is None:
        return values
    owner = values[OWNERS[table.name]] if owner == "" else owner
    types = {name: table.c[name].type for name in values}
    return {
        name: Owned(owner, value) if isinstance(types[name], Contents) else value for name, value in values.items()
    }  # fmt: skip


class _Encrypted(TypeDecorator[Any]):
    """What `Contents` is on a store with a cipher."""

    impl = Text
    cache_ok = False

    def __init__(self, contents: Contents, cipher: Cipher) -> None:
        super().__init__()
        self._contents = contents
        self._cipher = cipher
        self.impl_instance = JSON() if contents.form is ContentsForm.JSON else Text()

    def column_expression(self, column: Any) -> Any:
        return type_coerce(_with_owner(column), self._contents)

    def bind_processor(self, dialect: Dialect) -> Callable[[Any], Any]:  # noqa: ARG002 - the base class's signature
        is_json = self._contents.form is ContentsForm.JSON
        table, _, column = self._contents.place.partition(".")

        def process(value: Any) -> Any:
            if value is None or (isinstance(value, Owned) and value.value is None):
                return None
            if not isinstance(value, Owned):
                raise TypeError(f"contents of {self._contents.place} are to be stored without their owner")
            text = json.dumps(value.value) if is_json else value.value
            if value.owner is None:
                return text
            return (encrypt_json if is_json else encrypt)(self._cipher, text, CipherContext(table, column, value.owner))

        return process

    def result_processor(self, dialect: Dialect, coltype: object) -> Callable[[Any], Any]:  # noqa: ARG002 - the same
        form, length = self._contents.form, self._contents.length

        def process(value: Any) -> Any:
            if value is None:
                return None
            context, stored = _parts(value)
            text = plain_text(self._cipher, stored, context, is_json=form is not ContentsForm.TEXT)
            return json.loads(text) if form is ContentsForm.JSON else text[:length]

        return process


def plain_text(cipher: Cipher, stored: str, context: CipherContext, *, is_json: bool) -> str:
    """Of a value as it is in the database. Raises WrongKey."""
    if not is_json:
        return decrypt(cipher, stored, context)
    if MARK not in stored or stored.startswith(f'"{MARK}'):
        return decrypt_json(cipher, stored, context)
    body = json.loads(stored)  # of a trigger
    table, _, column = _COPIED_BY_TRIGGER.partition(".")
    if isinstance(body, dict) and isinstance(detail := body.get(column), str):
        body[column] = decrypt(cipher, detail, CipherContext(table, column, context.owner))
    return json.dumps(body)


def _with_owner(element: Any) -> Any:
    """What is read of a column: its place, the length of its owner's id, that id, and the value."""
    match element:
        case Label():
            return _with_owner(element.element)
        case Null():
            return element
        case Cast():
            return _with_owner(element.clause)
        case Case():
            whens = [(condition, _with_owner(value)) for condition, value in element.whens]
            return case(*whens, else_=_with_owner(element.else_))
        case ScalarSelect():
            inner: Any = element.element
            return inner.with_only_columns(_with_owner(*inner.selected_columns)).scalar_subquery()
        case FunctionElement() if element.name == "coalesce":
            return func.coalesce(*(_with_owner(clause) for clause in element.clauses))
        case FunctionElement() if element.name == "substr":
            return _with_owner(next(iter(element.clauses)))
        case ColumnClause():
            assert isinstance(element.type, Contents)
            assert element.table is not None
            owner = element.table.c[element.type.owner]
            length = cast(func.length(owner), Text)
            end = literal_column(f"'{_END}'", Text)
            place = literal_column(f"'{element.type.place}{_END}'", Text)
            return place.concat(length).concat(end).concat(cast(owner, Text)).concat(cast(element, Text()))
        case _:
            raise AssertionError(f"it is not known whose contents these are: {element!r}")


def _parts(value: str) -> tuple[CipherContext, str]:
    place, length, rest = value.split(_END, 2)
    table, _, column = place.partition(".")
    return CipherContext(table, column, rest[: int(length)]), rest[int(length) :]
