"""What beat sends, by the loops that are on."""

from __future__ import annotations

import pytest

from chordage.config.celery_settings import celery_settings
from chordage.config.settings import load


def ticks(*loops):
    settings = load(redis_url="redis://127.0.0.1:1/0", loops=loops, sweep=7, project=2, pulse=3)
    return celery_settings(settings, ())["beat_schedule"]


@pytest.mark.parametrize(("loops", "pulses"), [(("server",), False), (("pulse",), True), (("server", "pulse"), True)])
def test_what_is_due_in_the_room_becomes_turns_only_where_the_loop_pulse_is_on(loops, pulses):
    sent = ticks(*loops)

    assert ("pulse" in sent) is pulses
    assert (sent["rescue"]["schedule"], sent["project"]["schedule"]) == (7, 2), "whatever loops are on"


def test_each_tick_goes_to_the_system_queue_and_is_worth_nothing_once_the_next_is_due():
    for name, tick in ticks("pulse").items():
        assert tick["task"] == f"system.{name}"
        assert tick["options"] == {"queue": "system", "expires": tick["schedule"]}
