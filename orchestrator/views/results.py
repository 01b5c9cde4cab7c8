"""The stored result of a tool call: all of it, in parts, also where the model was shown only its beginning."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from chordage.orchestrator.core import kinship, spaces
from chordage.orchestrator.core.errors import NotFound
from chordage.orchestrator.core.status import CallStatus
from chordage.orchestrator.store import calls, runs
from chordage.orchestrator.store.database import Store

LONGEST = 262_144  # characters of one part


@dataclass(frozen=True, kw_only=True, slots=True)
class ResultView:
    call_id: str
    run_id: str
    thread_id: str
    tool: str
    status: CallStatus
    code: str | None  # why it did not succeed
    offset: int
    text: str
    total: int  # characters of the whole result
    next_offset: int | None  # where the next part begins; none: this is the last


def result(
    store: Store, call_id: str, *, offset: int = 0, limit: int = LONGEST, space: str | None = None
) -> ResultView:
    """`space`: of a caller, outside of which there is no call for it."""
    with store.read() as tx:
        call = calls.load(tx, call_id)
        run = runs.load(tx, call.run_id) if call is not None else None
        if run is None or not spaces.holds(space, kinship.home_of(run.thread_id, run.kin)):
            call = None
        part = calls.result_part(tx, call_id, offset, limit)
    if call is None or part is None:
        why = "has no result yet" if call is not None else "is not there"
        raise NotFound(f"call {call_id!r} {why}; `chordage show RUN --json` has the calls of a run with their ids")
    end = offset + len(part.text)
    return ResultView(
        call_id=call.id, run_id=call.run_id, thread_id=call.thread_id, tool=call.tool, status=call.status,
        code=call.code, offset=offset, text=part.text, total=part.total,
        next_offset=end if end < part.total else None,
    )  # fmt: skip


def is_call(store: Store, some_id: str) -> bool:
    with store.read() as tx:
        return calls.load(tx, some_id) is not None


def whole_result(store: Store, call_id: str) -> Iterator[ResultView]:
    """Its parts, one after the other."""
    offset: int | None = 0
    while offset is not None:
        part = result(store, call_id, offset=offset)
        yield part
        offset = part.next_offset


def with_full_results(store: Store, run_id: str) -> list[str]:
    """The calls of a run of whose results the model was shown only the beginning."""
    with store.read() as tx:
        return calls.with_full_results(tx, run_id)
