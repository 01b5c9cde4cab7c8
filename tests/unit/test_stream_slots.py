"""The open streams of each key and tenant in a process of the server."""

from __future__ import annotations

import pytest

from chordage.orchestrator.api.limits import StreamSlots
from chordage.orchestrator.core.callers import LOCAL, Caller
from chordage.orchestrator.core.errors import TooManyRequests

ACME = [Caller(id=name, tenant="acme") for name in "abc"]


def test_keys_of_a_tenant_share_its_streams():
    slots = StreamSlots(2, 3)
    for caller in (ACME[0], ACME[0], ACME[1]):
        slots.enter(caller)

    with pytest.raises(TooManyRequests, match="tenant acme has 3 streams open"):
        slots.enter(ACME[2])
    slots.enter(Caller(id="d", tenant="umbrella"))
    slots.leave(ACME[0])
    slots.enter(ACME[2])


def test_a_stream_that_is_refused_counts_for_nobody():
    slots = StreamSlots(1, 5)
    slots.enter(ACME[0])
    for _ in range(9):
        with pytest.raises(TooManyRequests, match="key a has 1 streams open"):
            slots.enter(ACME[0])

    slots.enter(ACME[1])
    slots.leave(ACME[0])
    slots.enter(ACME[0])


def test_programs_of_this_machine_are_not_limited():
    slots = StreamSlots(1, 1)
    for _ in range(9):
        slots.enter(LOCAL)
