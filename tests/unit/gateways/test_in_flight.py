"""Work in flight that waits before another attempt lets those who ask see it."""

from __future__ import annotations

import pytest

from chordage.orchestrator.core.errors import Aborted
from chordage.orchestrator.gateways.in_flight import InFlightWork


def test_back_off_is_told_before_it_is_waited_for() -> None:
    told: list[float] = []
    work = InFlightWork(run_id="r", epoch=1, paused=told.append)
    work.interrupt(Aborted())

    with pytest.raises(Aborted):
        work.back_off(30.0)

    assert told == [30.0]
