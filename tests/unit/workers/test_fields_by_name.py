"""Messages by name whose fields have none."""

from __future__ import annotations

import pytest

from chordage.config.settings import load
from chordage.orchestrator.core.errors import InvalidMessage, Unavailable, UserError
from chordage.tasks import names
from chordage.workers.app import make_app


@pytest.mark.parametrize(
    ("task", "example"),
    [(names.SUBMIT, 'kwargs={"text": "..."}'), (names.STEP, 'kwargs={"turn": "...", "verb": "next"}')],
)
def test_fields_without_names_are_refused_with_how_to_send_them(tmp_path, task, example):
    app = make_app(load(room=tmp_path, redis_url="redis://127.0.0.1:1/0"))
    with pytest.raises(InvalidMessage) as refusal:
        app.tasks[task].run("hello")
    assert str(refusal.value) == f"{task} takes its fields by name: send it with {example}, not with args"


@pytest.mark.parametrize("task", [names.SUBMIT, names.DECIDE, names.STEP, names.HELD, names.CANCEL, names.COMPACT])
def test_a_refusal_of_what_others_send_is_an_answer_and_no_fault_of_ours(tmp_path, task):
    """Celery logs whatever else is raised with a traceback, as often as it is sent."""
    app = make_app(load(room=tmp_path, redis_url="redis://127.0.0.1:1/0"))

    assert {UserError, Unavailable} <= set(app.tasks[task].throws)
