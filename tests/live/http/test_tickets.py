"""Tickets for streams, as `EventSource` sends them: once, in time, for one path, as their maker."""

from __future__ import annotations

from contextlib import ExitStack
from datetime import timedelta
from urllib.parse import quote

import pytest

from chordage.orchestrator import stages
from chordage.orchestrator.core.audit import CLI
from chordage.orchestrator.core.callers import KeyScope
from chordage.orchestrator.core.logins import TicketHolder
from chordage.workers import web
from support.following import everything
from support.web_server import finish, mounted, served, with_database

pytestmark = pytest.mark.redis


@pytest.fixture
def settings(settings, database_url):
    return with_database(settings, database_url).model_copy(update={"keyless": "none"})


def sent(new):
    return {"X-Api-Key": new.text}


def done_turn(client, rt, new, **more):
    turn = client.post("/turns", json={"text": "hello", "thread_id": "t"}, headers={**sent(new), **more}).json()
    finish(rt, turn["turn_id"])
    return f"/turns/{turn['turn_id']}/events"


def ticket_for(client, new, path, **more):
    answer = client.post("/tickets", json={"path": path}, headers={**sent(new), **more})
    assert answer.status_code == 201, answer.text
    return answer.json()["ticket"]


def test_a_ticket_opens_its_stream_once(client, rt, make_key):
    new = make_key()
    path = done_turn(client, rt, new)
    ticket = ticket_for(client, new, path)

    assert everything(client, path, ticket=ticket)[-1].event == "turn.ended"
    again = client.get(path, params={"ticket": ticket})
    assert (again.status_code, "make one for each request" in again.json()["detail"]) == (401, True)


def test_a_ticket_is_for_its_path_alone_and_stays_good_for_it(client, rt, make_key):
    new = make_key()
    path, other = done_turn(client, rt, new), done_turn(client, rt, new)
    ticket = ticket_for(client, new, path)

    assert client.get(other, params={"ticket": ticket}).status_code == 401
    assert client.get("/events", params={"ticket": ticket}).status_code == 401
    assert client.get("/turns", params={"ticket": ticket}).status_code == 401
    assert client.get(path, params={"ticket": f"{ticket}x"}).status_code == 401
    assert everything(client, path, ticket=ticket)


def test_another_process_of_the_server_takes_it_once_too(settings, rt, make_key):
    new = make_key()
    with ExitStack() as stack:
        first, second = (stack.enter_context(served(web.wired(settings))) for _ in range(2))
        path = done_turn(first, rt, new)
        ticket = ticket_for(first, new, path)

        assert everything(second, path, ticket=ticket)
        assert first.get(path, params={"ticket": ticket}).status_code == 401


def test_an_old_ticket_opens_nothing(client, rt, make_key):
    new = make_key()
    path = done_turn(client, rt, new)
    holder = TicketHolder(caller=new.key.id, user=None)
    old, young = (
        stages.make_ticket(rt.store, path, holder, rt.now() - age)
        for age in (stages.TICKET_LASTS, stages.TICKET_LASTS - timedelta(seconds=50))
    )

    assert client.get(path, params={"ticket": old}).status_code == 401
    assert everything(client, path, ticket=young)


def test_a_ticket_opens_what_its_maker_may_see_now(client, rt, make_key):
    writer, reader, other = make_key(), make_key(KeyScope.READ), make_key(KeyScope.READ, tenant="acme")
    path = done_turn(client, rt, writer)

    events = everything(client, path, ticket=ticket_for(client, reader, path))
    assert "hello" not in repr(events)  # without the scope payloads
    assert client.get(path, params={"ticket": ticket_for(client, other, path)}).status_code == 404

    revoked = make_key(KeyScope.READ, expires_at=rt.now() + timedelta(hours=1))
    ticket = stages.make_ticket(rt.store, path, TicketHolder(caller=revoked.key.id, user=None), rt.now())
    stages.revoke_key(rt.store, revoked.key.id, CLI, rt.now())
    assert client.get(path, params={"ticket": ticket}).status_code == 401


def test_a_ticket_made_for_a_user_opens_the_streams_of_that_user(client, rt, make_key):
    front = make_key(act_as=True)
    path = done_turn(client, rt, front, **{"Chordage-User": "alice"})

    assert (
        client.get(path, params={"ticket": ticket_for(client, front, path, **{"Chordage-User": "bob"})}).status_code
        == 404
    )
    assert everything(client, path, ticket=ticket_for(client, front, path, **{"Chordage-User": "alice"}))


def test_a_path_is_compared_as_it_is_decoded(client, make_key):
    new = make_key()
    client.post("/turns", json={"text": "x", "thread_id": "a b"}, headers=sent(new))
    path = f"/threads/{quote('api:a b')}/events"

    with client.stream("GET", path, params={"ticket": ticket_for(client, new, path)}) as stream:
        assert stream.status_code == 200


def test_only_a_hash_of_it_is_kept_and_old_ones_are_forgotten(rt, make_key):
    holder = TicketHolder(caller=make_key().key.id, user=None)
    stages.make_ticket(rt.store, "/events", holder, rt.now() - timedelta(hours=1))
    ticket = stages.make_ticket(rt.store, "/events", holder, rt.now())

    with rt.store.read() as tx:
        rows = [tuple(row) for row in tx.exec_driver_sql("SELECT * FROM stream_tickets")]

    assert len(rows) == 1
    assert ticket not in repr(rows)


def test_what_is_no_path_of_a_stream_gets_no_ticket(client, make_key):
    headers = sent(make_key())
    for path in ("", "turns", "/turns", "/events\x00", "/" + "x" * 1000):
        assert client.post("/tickets", json={"path": path}, headers=headers).status_code == 422, path


def test_a_ticket_needs_the_scope_read(client, make_key):
    refused = client.post("/tickets", json={"path": "/events"}, headers=sent(make_key(KeyScope.SUBMIT)))
    assert (refused.status_code, refused.json()["scope"]) == (403, "read")


def test_a_server_with_callers_of_its_own_makes_none(settings):
    with served(mounted(settings, {})) as client:
        refused = client.post("/tickets", json={"path": "/events"})
    assert (refused.status_code, "another way than by keys" in refused.json()["detail"]) == (409, True)
