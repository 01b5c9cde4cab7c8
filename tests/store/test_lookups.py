"""What a client of another protocol means: turns by their keys, and the conversations that questions belong to."""

from __future__ import annotations

import pytest

from chordage.config.settings import load
from chordage.orchestrator import stages
from chordage.orchestrator.views.lookups import question_places, turn_by_key
from chordage.tasks.schema import request_from
from chordage.workers.bootstrap import runtime_from
from support import asking_room


@pytest.fixture
def rt(tmp_path, database_url):
    room = asking_room.write(tmp_path / "room")
    runtime = runtime_from(load(room=room, database_url=database_url), with_redis=False)
    yield runtime
    runtime.store.close()


def test_turn_is_found_by_agent_source_and_key(rt):
    fields = {"text": "hello", "dedupe_key": "k1"}
    turn_id = stages.admit(rt, request_from(fields, source="agui", space="api"))[0].turn_id

    assert turn_by_key(rt.store, agent="ada", source="agui", key="k1") == turn_id
    assert turn_by_key(rt.store, agent="ada", source="http", key="k1") is None
    assert turn_by_key(rt.store, agent="bob", source="agui", key="k1") is None
    assert turn_by_key(rt.store, agent="ada", source="agui", key="k2") is None


def test_question_is_placed_in_its_conversation(rt):
    turn = asking_room.waiting_turn(rt, "deploy", thread_id="t1", space="api")
    (question,) = turn.questions
    (place,) = question_places(rt.store, [question.id, "unknown"], space="api").values()

    assert (place.id, place.turn_id, place.thread_id) == (question.id, turn.turn_id, "api:t1")
    assert place.schema == question.schema


def test_question_of_another_space_is_left_out(rt):
    (question,) = asking_room.waiting_turn(rt, "deploy", thread_id="t1", space="api").questions

    assert question_places(rt.store, [question.id], space="api@acme") == {}
    assert question.id in question_places(rt.store, [question.id], space=None)
