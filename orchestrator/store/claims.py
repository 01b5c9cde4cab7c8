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
    close_some,
    count_call_crash,
    join_replay,
    note_progress,
    park_behind,
    push_call_lease,
    release_call,
    renew_calls,
    renew_waiting_calls,
    resume_call,
    settle_call,
    supply_result,
    suspend_call,
    unpark,
)
from chordage.orchestrator.store.claim_held import finish_held, go_from_held, go_on_with_news, hold_again
from chordage.orchestrator.store.claim_places import is_handed_on, nobody_waits_for_place, wait_for_place
from chordage.orchestrator.store.claim_runs import (
    Position,
    claim_run,
    count_crash,
    end_run,
    finish,
    go_on,
    hold,
    keep,
    note_suspension,
    open_replay,
    push_lease,
    renew_runs,
    rest,
    unclaim_run,
    wake_run,
)
from chordage.orchestrator.store.claim_starts import Start, run_of, send_start, start_turn
from chordage.orchestrator.store.claim_steering import address, nobody_waits, step_in_front, take_in
from chordage.orchestrator.store.claim_turns import (
    Dropped,
    Ended,
    end_queued,
    end_turn,
    make_next_ready,
)

__all__ = [
    "Dropped",
    "Ended",
    "Outcome",
    "Position",
    "Start",
    "address",
    "answer_call",
    "claim_call",
    "claim_run",
    "close_calls",
    "close_some",
    "count_call_crash",
    "count_crash",
    "end_queued",
    "end_run",
    "end_turn",
    "finish",
    "finish_held",
    "go_from_held",
    "go_on",
    "go_on_with_news",
    "hold",
    "hold_again",
    "is_handed_on",
    "join_replay",
    "keep",
    "make_next_ready",
    "nobody_waits",
    "nobody_waits_for_place",
    "note_progress",
    "note_suspension",
    "open_replay",
    "park_behind",
    "push_call_lease",
    "push_lease",
    "release_call",
    "renew_calls",
    "renew_runs",
    "renew_waiting_calls",
    "rest",
    "resume_call",
    "run_of",
    "send_start",
    "settle_call",
    "start_turn",
    "step_in_front",
    "supply_result",
    "suspend_call",
    "take_in",
    "unclaim_run",
    "unpark",
    "wait_for_place",
    "wake_run",
]
