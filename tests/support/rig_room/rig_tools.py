"""Tools of the rig's room. Each notes down that it began and that it ended, apart from broker and database."""

from __future__ import annotations

import json
import os
import signal
import time
from pathlib import Path

from chordage import Context, tool

LEDGER = Path(__file__).with_name("ledger.jsonl")
GATE = Path(__file__).with_name("gate")
IN_VAIN = 600.0  # seconds; no test waits that long


def note(ctx: Context, name: str, phase: str) -> None:
    fact = {"what": "tool", "name": name, "phase": phase, "key": ctx.idempotency_key, "call": ctx.call_id}
    with LEDGER.open("ab", buffering=0) as ledger:  # one write of a short line in append mode is never torn
        ledger.write(json.dumps({**fact, "pid": os.getpid(), "at": now()}).encode() + b"\n")


def now() -> float:
    """By the clock of the machine, which `support.moved_worker` does not move."""
    return time.clock_gettime(time.CLOCK_REALTIME)


def carry_out(ctx: Context, name: str, who: str, seconds: float) -> str:
    note(ctx, name, "begin")
    time.sleep(seconds)
    note(ctx, name, "end")
    return f"{name} {who}"


def is_begun(key: str) -> bool:
    lines = LEDGER.read_text().rpartition("\n")[0].splitlines() if LEDGER.exists() else []
    facts = [json.loads(line) for line in lines]
    return any(fact.get("key") == key and fact["phase"] == "begin" for fact in facts)


def wait_at_gate() -> None:
    while not GATE.exists():
        time.sleep(0.02)


def linger(ctx: Context, name: str, who: str, seconds: float) -> str:
    """Does not come back when it is begun for the first time: its process is there to be killed inside it."""
    return carry_out(ctx, name, who, seconds if is_begun(ctx.idempotency_key) else IN_VAIN)


@tool(effect="pure")
def pure(ctx: Context, who: str, seconds: float = 0.0) -> str:
    """May run again."""
    return carry_out(ctx, "pure", who, seconds)


def hold_up(ctx: Context, name: str, who: str) -> str:
    """Returns when the test has opened the gate."""
    note(ctx, name, "begin")
    wait_at_gate()
    note(ctx, name, "end")
    return f"{name} {who}"


@tool(effect="pure")
def held_up(ctx: Context, who: str, seconds: float = 0.0) -> str:
    """Waits for the test, and may run again."""
    return hold_up(ctx, "held_up", who)


@tool(effect="unsafe")
def held_up_unsafe(ctx: Context, who: str, seconds: float = 0.0) -> str:
    """Waits for the test, and never runs again blindly."""
    return hold_up(ctx, "held_up_unsafe", who)


@tool(effect="idempotent")
def idempotent(ctx: Context, who: str, seconds: float = 0.0) -> str:
    """May run again with the same key."""
    return carry_out(ctx, "idempotent", who, seconds)


@tool(effect="unsafe")
def unsafe(ctx: Context, who: str, seconds: float = 0.0) -> str:
    """Never runs again blindly."""
    return carry_out(ctx, "unsafe", who, seconds)


@tool(effect="idempotent")
def lingers(ctx: Context, who: str, seconds: float = 0.0) -> str:
    """Comes back the second time only."""
    return linger(ctx, "lingers", who, seconds)


@tool(effect="idempotent")
def poison(ctx: Context, who: str, seconds: float = 0.0) -> str:
    """Takes its process with it, every time."""
    note(ctx, "poison", "begin")
    os.kill(os.getpid(), signal.SIGKILL)
    return who


@tool(effect="pure")
def raises(ctx: Context, who: str, seconds: float = 0.0) -> str:
    """Fails."""
    note(ctx, "raises", "begin")
    raise ValueError(f"no luck with {who}")


@tool(effect="pure")
def ignore(ctx: Context, who: str, seconds: float = 0.0) -> str:
    """Raises what Celery takes for an order."""
    from celery.exceptions import Ignore

    raise Ignore("Ignore")


@tool(effect="pure")
def reject(ctx: Context, who: str, seconds: float = 0.0) -> str:
    """Raises what Celery takes for an order."""
    from celery.exceptions import Reject

    raise Reject("Reject", requeue=True)
