"""Every guarded change of state. True (or a row): you moved it. False (or None): somebody else did, walk away.

The WHERE of each UPDATE comes from the tables in core/status.py and from what the caller saw: the step, the epoch, the
token. A late or doubled writer matches no row, and so changes nothing. No promise is made that work is done once; the
promise is that one outcome is written.

Locks are taken in this order, everywhere: group, thread, run, call, turn.
"""

from chordage.orchestrator.store.claim_calls import (
    Outcome,
    claim_call,
    close_calls,
    count_call_crash,
    note_progress,
    push_call_lease,
    release_call,
    renew_calls,
    renew_waiting_calls,
    settle_call,
)
from chordage.orchestrator.store.claim_runs import (
    Position,
    claim_run,
    count_crash,
    end_run,
    finish,
    go_on,
    open_run,
    push_lease,
    renew_runs,
    unclaim_run,
)
from chordage.orchestrator.store.claim_turns import (
    Dropped,
    Ended,
    budget_of,
    end_queued,
    end_turn,
    lock_budget,
    make_next_ready,
    start_turn,
)

__all__ = [
    "Dropped",
    "Ended",
    "Outcome",
    "Position",
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
    "open_run",
    "push_call_lease",
    "push_lease",
    "release_call",
    "renew_calls",
    "renew_runs",
    "renew_waiting_calls",
    "settle_call",
    "start_turn",
    "unclaim_run",
]
