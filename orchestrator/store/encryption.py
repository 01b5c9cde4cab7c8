"""The keys with which contents are encrypted: whether this process has them, and a new key for all that is stored.

A row of `cipher_keys` has a known text, encrypted with the key that it names. A process checks each of them before it
works, so one that lacks a key does not start, and no value is met first that it cannot read.

Failure: a value is written while it is encrypted anew. Mechanism: the UPDATE names the value that was read; where the
row has another by now, nothing is changed, and the row is counted as missed. Each row is a transaction of its own, so
other writers wait for one row at most, and no order of locks is broken. Not promised: that a process whose cipher still
encrypts with the old key writes no such value afterwards.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from sqlalchemy import Select, Table, Text, and_, cast, delete, select, tuple_, update

from chordage.orchestrator.core.contents import CipherContext, decrypt, key_of
from chordage.orchestrator.core.errors import ConfigError, WrongKey
from chordage.orchestrator.store import schema
from chordage.orchestrator.store.contents import Contents, ContentsForm, owned, plain_text
from chordage.orchestrator.store.database import Store
from chordage.orchestrator.store.erasure import fold_log_in, overwrite_deleted
from chordage.orchestrator.store.statements import insert_or

AT_ONCE = 100  # rows of one read
PLAIN = "not encrypted"
_PROOF = "these contents can be read"
_keys = schema.cipher_keys


def check(store: Store, *, note_key: bool) -> None:
    """Raises WrongKey if contents are stored that this process cannot read. `note_key`: also the key of its cipher, if
    it is new here.
    """
    with store.read() as tx:
        rows = tx.execute(select(_keys.c.key_id, cast(_keys.c.proof, Text()).label("proof"))).all()
    proofs: dict[str, str] = {row.key_id: row.proof for row in rows}
    if store.cipher is None:
        if proofs:
            raise WrongKey(
                f"contents in this database are encrypted with {_listed(proofs)}, and this process has no cipher: set "
                "CHORDAGE_CIPHER as for the other processes (docs/how-to/encryption.md)"
            )
        return
    for key_id, proof in proofs.items():
        if decrypt(store.cipher, proof, CipherContext("cipher_keys", "proof", key_id)) != _PROOF:
            raise WrongKey(f"the key {key_id!r} of the cipher is not the one with which contents were encrypted")
    if note_key and store.cipher.key_id not in proofs:
        with store.write() as tx:
            row = owned(tx, _keys, {"key_id": store.cipher.key_id, "proof": _PROOF})
            tx.execute(insert_or(tx.dialect.name, _keys).values(row).on_conflict_do_nothing())


def _listed(proofs: Mapping[str, str]) -> str:
    return ", ".join(f"key {key_id!r}" for key_id in sorted(proofs))


@dataclass(frozen=True, kw_only=True, slots=True)
class Rewritten:
    """What one pass has found: values by the id of their key."""

    table: str
    found: Counter[str]
    changed: int
    missed: int  # values that another process wrote at the same moment


def rewrite(store: Store, *, dry_run: bool = False) -> Iterator[Rewritten]:
    """Table by table, encrypt with the cipher's key what has another one, or none. A pass that was cut short is
    completed by the next, which finds the values that are left.
    """
    if store.cipher is None:
        raise ConfigError("there is no cipher: set CHORDAGE_CIPHER (docs/how-to/encryption.md)")
    for name in sorted(schema.CONTENTS.keys() - {_keys.name}):
        table = schema.metadata.tables[name]
        found, changed, missed = Counter[str](), 0, 0
        for row in _rows(store, table):
            for column in schema.CONTENTS[name]:
                if (stored := row[f"raw_{column}"]) is None:
                    continue
                key_id = key_of(stored.strip('"')) or PLAIN
                found[key_id] += 1
                if key_id != store.cipher.key_id and not dry_run:
                    is_done = _rewrite_value(store, table, row, column, stored)
                    changed, missed = changed + is_done, missed + (not is_done)
        yield Rewritten(table=name, found=found, changed=changed, missed=missed)
    with store.read() as tx:
        fold_log_in(tx)


def _rows(store: Store, table: Table) -> Iterator[Mapping[str, Any]]:
    """In the order of their keys, as they are stored."""
    key = tuple(table.primary_key.columns)
    owner = _kind(table, schema.CONTENTS[table.name][0]).owner
    stored = (cast(table.c[name], Text()).label(f"raw_{name}") for name in schema.CONTENTS[table.name])
    page: Select[Any] = select(*key, table.c[owner].label("of_owner"), *stored).order_by(*key).limit(AT_ONCE)
    after: Sequence[Any] | None = None
    while True:
        with store.read() as tx:
            behind = page if after is None else page.where(tuple_(*key) > tuple_(*after))
            rows = [dict(row) for row in tx.execute(behind).mappings()]
        yield from rows
        if len(rows) < AT_ONCE:
            return
        after = [rows[-1][column.name] for column in key]


def _rewrite_value(store: Store, table: Table, row: Mapping[str, Any], name: str, stored: str) -> bool:
    """False: the row has another value by now, or is gone."""
    assert store.cipher is not None
    kind = _kind(table, name)
    is_json = kind.form is ContentsForm.JSON
    text = plain_text(store.cipher, stored, CipherContext(table.name, name, row["of_owner"]), is_json=is_json)
    same = and_(*(column == row[column.name] for column in table.primary_key.columns))
    with store.single() as tx:
        overwrite_deleted(tx)
        values = owned(tx, table, {name: json.loads(text) if is_json else text}, row["of_owner"])
        unchanged = update(table).where(same, cast(table.c[name], Text()) == stored)
        return tx.execute(unchanged.values(values)).rowcount == 1


def _kind(table: Table, name: str) -> Contents:
    kind = table.c[name].type
    assert isinstance(kind, Contents)
    return kind


def retire(store: Store) -> list[str]:
    """Forget all keys but the cipher's own: a process need not have them any more. Call it after a pass has found no
    value of theirs.
    """
    assert store.cipher is not None
    with store.write() as tx:
        gone = delete(_keys).where(_keys.c.key_id != store.cipher.key_id).returning(_keys.c.key_id)
        return sorted(tx.execute(gone).scalars())
