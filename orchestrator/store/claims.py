"""Every guarded change of state. True (or a row): you moved it. False (or None): somebody else did, walk away.

The WHERE of each UPDATE comes from the tables in core/status.py and from what the caller saw: the step, the epoch, the
token. A late or doubled writer matches no row, and so changes nothing. No promise is made that work is done once; the
promise is that one outcome is written.

Locks are taken in this order, everywhere: group, thread, run, call, turn.
"""

from chordage.orchestrator.store.claim_calls import (
    Outcome,
    answer_call,
    claim_call,
    close_calls,
    count_call_crash,
    note_progress,
    park_behind,
    push_call_lease,
    release_call,
    renew_calls,
    renew_waiting_calls,
    resume_call,
    settle_call,
    suspend_call,
    unpark,
)
from chordage.orchestrator.store.claim_runs import (
    Position,
    claim_run,
    count_crash,
    end_run,
    finish,
    go_on,
    note_suspension,
    open_replay,
    open_run,
    push_lease,
    renew_runs,
    rest,
    unclaim_run,
    wake_run,
)
from chordage.orchestrator.store.claim_turns import (
    Dropped,
    Ended,
    budget_of,
    end_queued,
    end_turn,
    lock_budget,
    make_next_ready,
    others_wait,
    start_turn,
)

__all__ = [
    "Dropped",
    "Ended",
    "Outcome",
    "Position",
    "answer_call",
    "budget_of",
    "claim_call",
    "claim_run",
    "close_calls",
    "count_call_crash",
    "count_crash",
    "end_queued",
    "end_run",
    "end_turn",
    "finish",
    "go_on",
    "lock_budget",
    "make_next_ready",
    "note_progress",
    "note_suspension",
    "open_replay",
    "open_run",
    "others_wait",
    "park_behind",
    "push_call_lease",
    "push_lease",
    "release_call",
    "renew_calls",
    "renew_runs",
    "renew_waiting_calls",
    "rest",
    "resume_call",
    "settle_call",
    "start_turn",
    "suspend_call",
    "unclaim_run",
    "unpark",
    "wake_run",
]
