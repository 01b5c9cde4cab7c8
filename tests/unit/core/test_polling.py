"""Batches, backoff and keys of polled messages."""

from __future__ import annotations

from dataclasses import replace

import pytest

from chordage.orchestrator.core.channels import BACKOFF, WIDEST, Polled, batches, refusal_key
from support.channels import incoming


def polled(count: int, **given: object) -> Polled:
    messages = tuple(incoming(number, **given) for number in range(1, count + 1))
    return Polled(messages=messages, cursor="end", passed_over=2)


@pytest.mark.parametrize("count", [0, 1, WIDEST - 1, WIDEST, WIDEST + 1, 3 * WIDEST])
def test_batches_hold_every_message_once_and_only_the_last_has_the_cursor_of_the_look(count: int) -> None:
    found = list(batches(polled(count)))

    assert [message for batch in found for message in batch.messages] == list(polled(count).messages)
    assert all(len(batch.messages) <= WIDEST for batch in found)
    assert [batch.cursor for batch in found[:-1]] == [batch.messages[-1].cursor for batch in found[:-1]]
    assert (found[-1].cursor, sum(batch.passed_over for batch in found)) == ("end", 2)


def test_one_message_without_a_cursor_makes_one_batch_of_all() -> None:
    some = polled(2 * WIDEST)
    some = replace(some, messages=(*some.messages[:-1], replace(some.messages[-1], cursor=None)))

    assert [len(batch.messages) for batch in batches(some)] == [2 * WIDEST]


def test_delay_of_a_failing_channel_grows_to_a_bound_and_chance_takes_at_most_half_of_it() -> None:
    assert [BACKOFF.delay(failures, 1.0) for failures in (1, 2, 3, 7, 10_000)] == [1, 2, 4, 60, 60]
    assert BACKOFF.delay(3, 0.0) == 2


def test_a_refused_message_keeps_its_key_where_that_can_be_stored() -> None:
    assert refusal_key(incoming(7)) == "7"
    assert refusal_key(incoming(7, key="")) != refusal_key(incoming(8, key=""))
