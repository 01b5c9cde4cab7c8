"""Lists over HTTP: turns, runs and threads, page by page and by filters."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from itertools import product

import pytest

from support.web_server import PROBLEM, finish

pytestmark = pytest.mark.redis

LISTS = ["/turns", "/runs", "/threads", "/deliveries"]


def submit(client, text="hello", **fields):
    return client.post("/turns", json={"text": text, **fields}).json()["turn_id"]


def pages_of(client, path, **query):
    """The rows of each page, until there is no next."""
    after, pages = None, []
    while True:
        page = client.get(path, params={**query, **({"after": after} if after else {})}).json()
        pages.append(page["data"])
        after = page["next"]
        if after is None:
            return pages


def ids(page, name="turn_id"):
    return [row[name] for row in page]


def test_turns_are_listed_newest_first_and_page_by_page(client):
    sent = [submit(client, thread_id=f"t{number}") for number in range(5)]

    pages = pages_of(client, "/turns", limit=2)

    assert [len(page) for page in pages] == [2, 2, 1]
    assert [one for page in pages for one in ids(page)] == sent[::-1]


def test_a_page_that_is_just_full_is_the_last(client):
    submit(client), submit(client)

    assert client.get("/turns", params={"limit": 2}).json()["next"] is None


def test_turns_that_come_between_two_pages_move_none(client):
    sent = [submit(client) for _ in range(4)]
    first = client.get("/turns", params={"limit": 2}).json()
    submit(client)

    second = client.get("/turns", params={"limit": 2, "after": first["next"]}).json()

    assert ids(first["data"]) + ids(second["data"]) == sent[::-1]


def test_turns_of_one_thread_are_found_by_its_name_and_by_its_id(client):
    mine = [submit(client, thread_id="a b/ü") for _ in range(3)]
    submit(client, thread_id="b")

    for name in ("a b/ü", "api:a b/ü"):
        pages = pages_of(client, "/turns", thread_id=name, limit=2)
        assert [one for page in pages for one in ids(page)] == mine[::-1]


def test_turns_are_filtered_by_what_they_are(client, rt):
    answered, failed = submit(client, thread_id="a"), submit(client, "fail", agent="bob", thread_id="b")
    finish(rt, answered), finish(rt, failed)
    queued = submit(client, tenant="acme", thread_id="c")

    def found(**query):
        return ids(client.get("/turns", params=query).json()["data"])

    assert found(status="queued") == [queued]
    assert found(status="done") == [failed, answered]
    assert found(status="active") == []
    assert found(disposition="failed") == [failed]
    assert found(agent="bob") == [failed]
    assert found(group="chat", tenant="acme") == [queued]
    assert found(group="will") == []


def test_turns_are_filtered_by_the_time_they_came(client):
    turn, now = submit(client), datetime.now(UTC)

    def found(**query):
        return ids(client.get("/turns", params=query).json()["data"])

    hour = timedelta(hours=1)
    assert found(since=(now - hour).isoformat(), until=(now + hour).isoformat()) == [turn]
    assert found(until=(now - hour).isoformat()) == []
    assert found(since=(now + hour).isoformat()) == []


def test_runs_are_listed_with_their_filters(client, rt):
    for text, agent in (("hello", "ada"), ("fail", "bob")):
        finish(rt, submit(client, text, agent=agent, thread_id=agent))

    runs = client.get("/runs").json()["data"]

    assert [(run["agent"], run["reason"]) for run in runs] == [("bob", "error"), ("ada", "natural_end")]
    assert runs[1]["usage"]["input_tokens"] > 0
    for query in ({"agent": "bob"}, {"reason": "error"}, {"code": "model_auth"}, {"thread_id": "bob"}):
        assert client.get("/runs", params=query).json()["data"] == runs[:1]
    assert client.get("/runs", params={"status": "running"}).json()["data"] == []
    assert client.get("/runs", params={"status": "done"}).json()["data"] == runs


def test_runs_of_a_thread_come_page_by_page(client, rt):
    for _ in range(3):
        finish(rt, submit(client, thread_id="t"))

    pages = pages_of(client, "/runs", thread_id="t", limit=2)

    found = [one for page in pages for one in ids(page, "run_id")]
    assert [len(page) for page in pages] == [2, 1]
    assert found == [run["run_id"] for run in client.get("/runs").json()["data"]]


def test_threads_with_the_newest_turn_come_first(client):
    for name in ("a", "b", "c", "a"):
        submit(client, thread_id=name)

    pages = pages_of(client, "/threads", limit=2)

    assert [one for page in pages for one in ids(page, "thread_id")] == ["api:a", "api:c", "api:b"]
    assert pages[0][0]["turns"] == 2
    assert ids(client.get("/threads", params={"agent": "bob"}).json()["data"]) == []


NO_CURSORS = ["x", "!", "bnVsbA", "WzFd", "WyIiXQ", "W10", "WyJhIiwiYiIsImMiXQ", "🙂"]


def test_a_cursor_that_is_none_is_refused_in_words(client):
    for path, after in product(LISTS, NO_CURSORS):
        answer = client.get(path, params={"after": after})

        if answer.status_code == 200:  # it has the form of a key: nothing comes behind it
            assert answer.json() == {"data": [], "next": None}, (path, after)
        else:
            assert (answer.status_code, answer.headers["content-type"]) == (422, PROBLEM), (path, after)
            assert answer.json()["field"] == "after"


def test_a_page_has_bounds(client):
    for path, limit in product(LISTS, (0, 201, "x")):
        assert client.get(path, params={"limit": limit}).status_code == 422, (path, limit)


@pytest.mark.parametrize("wrong", [{"status": "x"}, {"disposition": "x"}, {"group": "x"}, {"since": "2026-01-01"}])
def test_a_filter_that_means_nothing_is_refused(client, wrong):
    answer = client.get("/turns", params=wrong)

    assert (answer.status_code, answer.json()["field"]) == (422, next(iter(wrong)))
