"""What all faces share: the kinds of moments that each shows, and the moments that a client is sent."""

from __future__ import annotations

import json
from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any, cast, get_args

import anyio
import pytest

from chordage.orchestrator.api import faces
from chordage.orchestrator.api.streams import STREAMS_MAX
from chordage.orchestrator.core.approvals import Why
from chordage.orchestrator.core.errors import TooManyRequests, Unavailable
from chordage.orchestrator.faces.agui import AguiFace
from chordage.orchestrator.faces.ai_sdk import AiSdkFace
from chordage.orchestrator.faces.face import Face
from chordage.orchestrator.faces.moments import (
    CallProgressed,
    CallStarted,
    MessageTaken,
    QuestionAnswered,
    QuestionAsked,
    RoundSettled,
    StepStarted,
    SubAgentStarted,
    TurnEnded,
    TurnMoment,
    Waiting,
)
from chordage.orchestrator.faces.openai_chat import ChatFace
from chordage.orchestrator.faces.openai_responses import ResponseFace
from chordage.orchestrator.views.lookups import QuestionPlace
from support.moments import ADD, Script, question
from support.openai_moments import ReplayedStreams

ASKED = question(ADD)
ASKS: list[TurnMoment] = Script().started().replied(calls=[ADD]).asked(ASKED).waiting(ASKED).moments
GOES_ON: list[TurnMoment] = (
    Script().started().replied(calls=[ADD]).asked(ASKED).answered(ASKED).settled(ADD, "3").replied("3").ended().moments
)


@pytest.mark.parametrize(
    ("face", "not_shown"),
    [
        (AguiFace, {CallStarted, QuestionAnswered}),
        (AiSdkFace, {CallStarted, SubAgentStarted}),
        (
            ResponseFace,
            {StepStarted, SubAgentStarted, CallStarted, CallProgressed, QuestionAnswered, MessageTaken},
        ),
    ],
)
def test_a_face_shows_every_kind_of_moment_but_these(face: type[Face], not_shown: set[type]):
    assert set(get_args(TurnMoment)) - face.TABLE.keys() == not_shown


def test_a_chat_completion_shows_no_calls_of_the_agent():
    assert not ChatFace.TABLE.keys() & {QuestionAsked, CallStarted, CallProgressed, RoundSettled}


@pytest.mark.parametrize(
    "face",
    [
        AguiFace(thread_id="t", run_id="r"),
        AiSdkFace(turn_id="turn1"),
        ChatFace(id="c", agent="a", created=1),
        ResponseFace(id="resp_1", agent="a", created_at=1),
    ],
    ids=lambda face: type(face).__name__,
)
def test_a_piece_that_ends_between_the_halves_of_a_character_can_be_sent(face: Face):
    framed = face.frame({"type": "any", "delta": "\ud83d"})["data"]

    assert json.loads(framed.encode())["delta"] == "\ud83d"


def moments(
    streams: ReplayedStreams, turn_ids: Sequence[str] = ("turn1",), answered: Sequence[str] = ()
) -> list[TurnMoment]:
    async def read() -> list[TurnMoment]:
        turns = faces.FollowedTurns(turn_ids=turn_ids, answered={"turn1": frozenset(answered)})
        return [moment async for moment in faces.moments_of(streams, turns, space=None)]

    return anyio.run(read)


@pytest.fixture(autouse=True)
def no_pause(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(faces, "STALE_PAUSE", 0)


def test_what_was_answered_is_known_by_its_turn_and_by_the_call_that_waits_for_a_sub_agent():
    usual: dict[str, Any] = {"why": Why.GATE, "schema": None, "is_open": True, "thread_id": "t"}
    places = [
        QuestionPlace(id="q1", call_id="c1", turn_id="turn1", **usual),
        QuestionPlace(id="q2", call_id="c2", turn_id="turn1", call_above="c0", **usual),
        QuestionPlace(id="q3", call_id="c3", turn_id="turn2", **usual),
    ]
    turns = faces.FollowedTurns.behind(places, ["turn1", "turn2"])

    assert turns.answers == ["q1", "q2", "q3"]
    assert turns.answered == {"turn1": frozenset({"q1", "c1", "q2", "c2", "c0"}), "turn2": frozenset({"q3", "c3"})}
    assert faces.FollowedTurns.behind(places, [], is_stored=False).answered == {}, "the turn may still wait for them"


def stale(times: int) -> ReplayedStreams:
    """That shows the turn so often as it was before the answer."""
    return ReplayedStreams(turns={"turn1": GOES_ON}, stale={"turn1": (times, ASKS)})


@pytest.mark.parametrize("times", [0, 1, 3])
def test_a_question_that_the_client_has_answered_is_not_asked_of_it_again(times: int):
    streams = stale(times)
    seen = moments(streams, answered=[ASKED.id, ADD.id])

    assert not any(isinstance(moment, Waiting) for moment in seen)
    assert seen[times:] == GOES_ON, "but for `Started`, which comes each time"
    assert len(streams.followed) == times + 1


def test_a_turn_that_waits_for_another_question_is_not_read_again():
    streams = ReplayedStreams(turns={"turn1": ASKS})

    assert moments(streams, answered=["another"]) == ASKS


def test_a_stream_that_never_has_the_answer_is_given_up(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(faces, "STALE_TRIES", 2)

    with pytest.raises(Unavailable, match="are stored"):
        moments(stale(2), answered=[ASKED.id])


def test_the_end_of_a_turn_is_left_out_where_another_follows():
    streams = ReplayedStreams(turns={"turn1": GOES_ON, "turn2": GOES_ON})
    seen = moments(streams, ["turn1", "turn2"])

    assert seen == [*GOES_ON[:-1], *GOES_ON]
    assert sum(isinstance(moment, TurnEnded) for moment in seen) == 1


def test_no_face_is_served_by_a_server_that_sends_no_more_streams():
    full = SimpleNamespace(streams=object(), events=SimpleNamespace(followers=STREAMS_MAX))

    with pytest.raises(TooManyRequests, match=str(STREAMS_MAX)):
        faces.check_streams(cast("Any", full))


def test_no_face_is_served_without_redis():
    with pytest.raises(Unavailable, match="no Redis"):
        faces.check_streams(cast("Any", SimpleNamespace(streams=None, events=None)))
