"""The moments of a turn, as the faces get them from the streams of a server."""

from __future__ import annotations

import asyncio

import pytest

from chordage.config.settings import load
from chordage.orchestrator import stages, views
from chordage.orchestrator.core.approvals import Action, DecisionRequest
from chordage.orchestrator.core.errors import InvalidMessage, NotFound, Unavailable
from chordage.orchestrator.core.intents import Advance
from chordage.orchestrator.core.message import CALLERS
from chordage.orchestrator.faces.moments import (
    CallSettled,
    QuestionAnswered,
    Queued,
    Started,
    TextGrown,
    TurnEnded,
    Waiting,
)
from chordage.tasks.courier import Courier
from chordage.workers import local
from chordage.workers.app import make_app
from chordage.workers.streams import streams_of
from support import asking_room
from support.waiting import PATIENCE
from support.web_server import finish

pytestmark = pytest.mark.redis


@pytest.fixture
def settings(tmp_path, migrated_database_url, redis_url):
    room = asking_room.write(tmp_path / "room")
    return load(room=room, database_url=migrated_database_url("sqlite"), redis_url=redis_url)


@pytest.fixture
def hub(settings, rt):
    hub = streams_of(settings, rt, Courier(make_app(settings)))
    yield hub
    hub.stop()


def waiting_turn(rt, text="deploy"):
    return asking_room.waiting_turn(rt, text, space=CALLERS)


def moments_of(hub, turn_id, *, at=None, do=None, **more):
    """`do` is done, in a thread, as soon as the first moment of the kind `at` has come."""

    async def read():
        moments, doing = [], []
        async for moment in hub.follow(turn_id, space=None, **more):
            moments.append(moment)
            if at is not None and isinstance(moment, at) and not doing:
                doing.append(asyncio.create_task(asyncio.to_thread(do)))
        await asyncio.gather(*doing)
        return moments

    return asyncio.run(asyncio.wait_for(read(), PATIENCE))


def kinds(moments):
    return [type(moment).__name__ for moment in moments]


def decide(rt, turn, action=Action.RESUME):
    (question,) = turn.questions
    payload = {"ok": True} if action is Action.RESUME else None
    request = DecisionRequest(target=question.id, action=action, payload=payload)
    stages.decide(rt, [request], source="test")


def carry_on(rt, turn):
    local.carry_out(rt, [Advance(run_id=turn.run_id, group=turn.group)])


def last_fact(rt, run_id):
    stages.project(rt)
    return views.run_events(rt.store, run_id).events[-1].id


def test_turn_that_waits_ends_with_its_questions(hub, rt):
    turn = waiting_turn(rt)
    moments = moments_of(hub, turn.turn_id)
    assert isinstance(moments[0], Started)
    assert isinstance(moments[-1], Waiting)
    assert [question.id for question in moments[-1].questions] == [question.id for question in turn.questions]
    assert kinds(moments).count("Waiting") == 1
    assert kinds(moments).count("QuestionAsked") == 1


def test_turn_that_still_waits_says_so_again(hub, rt):
    turn = waiting_turn(rt)
    again = moments_of(hub, turn.turn_id, after=last_fact(rt, turn.run_id))
    assert kinds(again) == ["Started", "Waiting"]


def test_after_a_decision_only_what_follows_from_it_comes(hub, rt):
    turn = waiting_turn(rt)
    known = last_fact(rt, turn.run_id)
    decide(rt, turn)
    moments = moments_of(hub, turn.turn_id, after=known, at=QuestionAnswered, do=lambda: carry_on(rt, turn))
    assert kinds(moments)[:2] == ["Started", "QuestionAnswered"]
    assert isinstance(moments[-1], TurnEnded)
    assert [moment.content for moment in moments if isinstance(moment, CallSettled)] == ["deployed to prod"]
    assert "".join(moment.text for moment in moments if isinstance(moment, TextGrown)) == moments[-1].text


def test_whole_turn_after_its_end_has_no_wait(hub, rt):
    turn = waiting_turn(rt)
    decide(rt, turn)
    carry_on(rt, turn)
    moments = moments_of(hub, turn.turn_id)
    assert "Waiting" not in kinds(moments)
    assert kinds(moments).count("TurnEnded") == 1
    assert moments[-1].disposition == "answered"


def test_end_comes_also_behind_the_last_fact(hub, rt):
    turn = waiting_turn(rt)
    decide(rt, turn, Action.CANCEL)
    carry_on(rt, turn)
    again = moments_of(hub, turn.turn_id, after=last_fact(rt, turn.run_id))
    assert kinds(again) == ["Started", "TurnEnded"]


def test_turn_that_has_not_started_is_queued_first(hub, rt):
    busy = waiting_turn(rt)
    decide(rt, busy)
    request = asking_room.request_from({"text": "hello", "thread_id": busy.thread_id}, source="test", space=CALLERS)
    queued, _ = stages.admit(rt, request)
    assert views.turn(rt.store, queued.turn_id).run_id is None
    moments = moments_of(hub, queued.turn_id, at=Queued, do=lambda: (carry_on(rt, busy), finish(rt, queued.turn_id)))
    assert isinstance(moments[0], Queued)
    assert kinds(moments).count("Queued") == 1
    assert kinds(moments)[1] == "Started"
    assert isinstance(moments[-1], TurnEnded)


def test_turn_that_was_cancelled_in_the_queue_ends(hub, rt):
    busy = waiting_turn(rt)
    request = asking_room.request_from(
        {"text": "hello", "thread_id": busy.thread_id, "when_busy": "enqueue"}, source="test", space=CALLERS
    )
    queued, _ = stages.admit(rt, request)
    moments = moments_of(hub, queued.turn_id, at=Queued, do=lambda: stages.cancel_turn(rt, queued.turn_id, "enough"))
    assert kinds(moments)[-1] == "TurnEnded"
    assert moments[-1].disposition == "cancelled"


def test_what_the_caller_does_not_see_is_not_found_before_the_first_moment(hub, rt):
    turn = waiting_turn(rt)

    async def first(turn_id, **more):
        return await anext(hub.follow(turn_id, **more))

    for turn_id, space in ((turn.turn_id, "api@other"), ("no-such", None)):
        with pytest.raises(NotFound):
            asyncio.run(first(turn_id, space=space))
    with pytest.raises(InvalidMessage):
        asyncio.run(first(turn.turn_id, space=None, after="x"))


def test_follower_is_told_when_the_server_stops(hub, rt):
    turn = waiting_turn(rt)
    decide(rt, turn)

    async def follow_and_stop():
        async for _ in hub.follow(turn.turn_id, space=None):
            hub.end_followers()

    with pytest.raises(Unavailable, match="stopping"):
        asyncio.run(asyncio.wait_for(follow_and_stop(), PATIENCE))


def test_nobody_is_left_when_followers_have_gone(hub, rt):
    turn = waiting_turn(rt)
    decide(rt, turn)

    async def leave():
        async def first():
            moments = hub.follow(turn.turn_id, space=None)
            await anext(moments)
            await moments.aclose()

        await asyncio.gather(*(first() for _ in range(20)))
        if left := asyncio.all_tasks() - {asyncio.current_task()}:  # that have been cancelled, and have to end
            await asyncio.wait(left, timeout=PATIENCE)
        return hub.followers, dict(hub._topics), dict(hub._routes), dict(hub._queued)  # noqa: SLF001 - what must not leak

    assert asyncio.run(leave()) == (0, {}, {}, {})
