"""Server-sent events, cut wherever the network cuts them."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from chordage.orchestrator.core.model import Fault
from chordage.orchestrator.gateways.models.remote import LINE_LIMIT, data_of_events
from chordage.orchestrator.gateways.models.wire import AttemptFailed

STREAM = 'event: a\ndata: {"x": "é\u2028"}\n\n: comment\r\ndata:two\r\ndata: lines\r\n\r\nid: 7\n\ndata: cut off'


@given(st.lists(st.integers(0, len(STREAM.encode())), max_size=8))
def test_events_are_the_same_however_the_stream_is_cut(places):
    data = STREAM.encode()
    cuts = [0, *sorted(places), len(data)]
    chunks = [data[start:end] for start, end in pairwise(cuts)]
    assert list(data_of_events(chunks)) == ['{"x": "é\u2028"}', "two\nlines"]


def test_a_line_without_end_is_malformed():
    with pytest.raises(AttemptFailed, match="a line of the stream is longer than") as failed:
        list(data_of_events([b"data: ", b"x" * LINE_LIMIT]))
    assert failed.value.fault is Fault.MALFORMED
