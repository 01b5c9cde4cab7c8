"""A shop's till in the rig's room: what is booked stays booked, whatever becomes of the worker that booked it.

The book is a file to which each booking adds a line. Who dies inside a tool dies before or after its line.
"""

from __future__ import annotations

import json
import time
from pathlib import Path

from rig_tools import IN_VAIN, is_begun, note, wait_at_gate

from chordage import Context, tool

BOOK = Path(__file__).with_name("book.jsonl")
PAID = "paid"


def is_booked(key: str) -> bool:
    lines = BOOK.read_text().rpartition("\n")[0].splitlines() if BOOK.exists() else []
    return any(json.loads(line)["key"] == key for line in lines)


def book(ctx: Context, name: str, seconds: float) -> str:
    note(ctx, name, "begin")
    time.sleep(seconds / 2)
    with BOOK.open("ab", buffering=0) as file:  # one write of a short line in append mode is never torn
        file.write(json.dumps({"key": ctx.idempotency_key, "tool": name, "at": time.time()}).encode() + b"\n")
    time.sleep(seconds / 2)
    note(ctx, name, "end")
    return PAID


@tool(effect="unsafe")
def charge(ctx: Context, who: str, seconds: float = 0.0) -> str:
    """Books, each time it is called."""
    return book(ctx, "charge", seconds)


def look_up(ctx: Context) -> str | None:
    return PAID if is_booked(ctx.idempotency_key) else None


@tool(effect="reconcilable", reconcile=look_up)
def charge_on_record(ctx: Context, who: str, seconds: float = 0.0) -> str:
    """Books each time it is called; whether it has can be looked up."""
    return book(ctx, "charge_on_record", seconds)


@tool(effect="reconcilable", reconcile=look_up)
def charge_in_time(ctx: Context, who: str, seconds: float = 0.0) -> str:
    """The same. The first time it would book when no test waits for it any more, the second when the gate is open."""
    if not is_begun(ctx.idempotency_key):
        return book(ctx, "charge_in_time", IN_VAIN)
    note(ctx, "charge_in_time", "again")
    wait_at_gate()
    return book(ctx, "charge_in_time", seconds)


@tool(effect="idempotent")
def charge_by_key(ctx: Context, who: str, seconds: float = 0.0) -> str:
    """Books; of two bookings with one key only the first counts."""
    return book(ctx, "charge_by_key", seconds)
