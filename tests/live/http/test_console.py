"""The console over HTTP, as a browser sees it: pages, forms without script, and what is refused."""

from __future__ import annotations

import contextlib
import json
import re
from dataclasses import replace
from html import unescape
from itertools import product

import httpx
import pytest

from chordage.config.settings import load
from chordage.orchestrator import stages, views
from chordage.orchestrator.api.services import keep
from chordage.orchestrator.core.approvals import Action, DecisionRequest
from chordage.orchestrator.core.audit import Actor
from chordage.orchestrator.core.callers import KeyScope
from chordage.orchestrator.core.errors import Unavailable
from chordage.orchestrator.core.intents import Advance
from chordage.orchestrator.core.keys import KeyTerms
from chordage.orchestrator.core.status import Disposition
from chordage.tasks.schema import request_from
from chordage.workers import local, web
from support import console_room
from support.console_room import HOSTILE, log_in, stream, token_in, waiting_turn
from support.waiting import PATIENCE
from support.web_server import finish, raising, served

pytestmark = pytest.mark.redis

ACTIVE = re.compile(
    "[\x00-\x08\x0b-\x1f\x7f-\x9f\xad\u200b\u200e\u200f\u2028-\u202e\u2060-\u206f\u3164\ufeff\U000e0000-\U000e007f]"
)
PAGES = (
    "/", "/inbox", "/runs", "/threads", "/agents", "/usage", "/groups", "/pulse", "/channels", "/workers", "/bulk",
    "/audit",
)  # fmt: skip


@pytest.fixture
def settings(tmp_path, migrated_database_url, redis_url):
    room = console_room.write(tmp_path / "room")
    return load(room=room, database_url=migrated_database_url("sqlite"), redis_url=redis_url)


@pytest.fixture
def console(client, rt):
    return log_in(client, rt.store)


def get(console, path, **query):
    response = console.get(f"/console{path}", params=query or None)
    assert response.status_code == 200, response.text[:2000]
    return response


def post(console, path, page="/inbox", **fields):
    token = token_in(get(console, page).text)
    return console.post(f"/console{path}", data={"csrf": token, **fields})


def question_of(rt, turn):
    (question,) = views.turn(rt.store, turn.turn_id).questions
    return question


def carry_on(rt, turn):
    local.carry_out(rt, [Advance(run_id=turn.run_id, group=turn.group)])
    return views.turn(rt.store, turn.turn_id)


def settled(rt, text, space=None, **fields):
    admitted = stages.admit(rt, request_from({"text": text, **fields}, source="test", space=space))[0]
    finish(rt, admitted.turn_id)
    return views.turn(rt.store, admitted.turn_id)


# who may look


def test_a_browser_without_a_session_is_sent_to_log_in(client):
    response = client.get("/console/runs?q=status:waiting")

    assert response.status_code == 303
    assert response.headers["location"] == "/console/login?next=%2Fruns%3Fq%3Dstatus%3Awaiting"
    assert client.get("/console/login").status_code == 200


def test_a_browser_at_the_root_is_sent_to_the_console_and_a_program_is_not(client):
    assert client.get("/", headers={"accept": "text/html"}).headers["location"] == "/console/"
    assert client.get("/").status_code == 404


def test_login_leads_back_to_the_page_but_never_to_another_site(client, rt):
    token = stages.make_link(rt.store, rt.now())

    response = client.get("/console/login", params={"link": token, "next": "//evil.example/x"})

    assert response.headers["location"] == "/console/"


def test_a_link_works_once(client, rt):
    token = stages.make_link(rt.store, rt.now())
    client.get("/console/login", params={"link": token})
    client.cookies.clear()

    response = client.get("/console/login", params={"link": token})

    assert response.status_code == 401
    assert "the link was used" in response.text


@pytest.mark.parametrize("page", PAGES)
def test_every_page_can_be_read(console, page):
    get(console, page)


def test_pages_allow_only_their_own_scripts_and_no_frame(console):
    first, second = get(console, "/"), get(console, "/")

    policy = first.headers["content-security-policy"]
    (nonce,) = re.findall(r"script-src 'nonce-([^']+)';", policy)
    assert "frame-ancestors 'none'" in policy
    assert "default-src 'none'" in policy
    assert "unsafe" not in policy
    assert nonce not in second.headers["content-security-policy"], "new for each page"
    for attributes, inside in re.findall(r"<script([^>]*)>(.*?)</script>", first.text, re.DOTALL):
        assert f'nonce="{nonce}"' in attributes
        assert inside == "", "no inline script"
    assert not re.search(r"\son\w+=", first.text), "no inline handler"
    assert not re.search(r"(src|href)=\"(https?:)?//", first.text), "no other host"


def test_files_of_the_console_are_served_with_their_type(console):
    for name, kind in (("console.css", "text/css"), ("console.js", "text/javascript"), ("icon.svg", "image/svg+xml")):
        assert get(console, f"/static/{name}").headers["content-type"].startswith(kind)


def test_files_are_kept_by_browsers_while_their_content_is_what_the_address_says(console):
    page = get(console, "/").text
    files = re.findall(r'(?:href|src)="/console(/static/[^"]+)"', page)
    kept = [get(console, path).headers["cache-control"] for path in files]
    of_another_version = get(console, f"{files[0].partition('?')[0]}?v=0123456789abcdef")

    assert len(files) == 8
    assert set(kept) == {"public, max-age=31536000, immutable"}
    assert len({path.partition("?v=")[2] for path in files}) == 8, "each has a digest of its own"
    assert (of_another_version.status_code, of_another_version.headers["cache-control"]) == (200, "no-cache")


@pytest.mark.parametrize("path", ["/login?link=spent", "/ask/nothing.1"])
def test_address_with_a_secret_is_not_in_the_referer_of_what_the_page_loads(console, path):
    page = console.get(f"/console{path}")

    assert page.status_code in {401, 404}
    assert page.headers["referrer-policy"] == "strict-origin"


def test_page_that_fails_does_not_say_where_the_database_is(settings, rt):
    app = web.wired(settings)
    (console,) = [route.app for route in app.routes if getattr(route, "path", "") == "/console"]
    away = raising(Unavailable("the database at secret.example does not answer"))
    keep(console, replace(app.state.services, inbox=away))
    with served(app) as client:
        page = log_in(client, rt.store).get("/console/inbox")

    assert page.status_code == 503
    assert "A required service does not answer" in page.text
    assert "secret" not in page.text


def test_console_works_under_a_path_prefix(settings, rt):
    with served(web.wired(settings), root_path="/tools") as client:
        token = stages.make_link(rt.store, rt.now())
        response = client.get("/console/login", params={"link": token})  # as a proxy sends it, without the prefix
        cookie = response.headers["set-cookie"]
        page = client.get("/console/runs", headers={"cookie": cookie.partition(";")[0]})

    assert response.headers["location"] == "/tools/console/"
    assert "Path=/tools/console;" in cookie
    assert page.status_code == 200
    assert 'href="/tools/console/inbox"' in page.text
    assert not re.search(r"(href|action|src)=\"/console", page.text)


# decisions by forms, without a script


def test_a_question_is_approved_and_its_run_continues(console, rt):
    turn = waiting_turn(rt, "pay")
    question = question_of(rt, turn)
    assert f"question-{question.id}" in get(console, "/inbox").text

    response = post(console, "/inbox", target=question.id, verdict="approve")

    assert (response.status_code, response.headers["location"]) == (303, "/console/inbox?done=approved")
    assert "Approved." in get(console, "/inbox", done="approved").text
    done = carry_on(rt, turn)
    assert done.disposition is Disposition.ANSWERED
    assert "paid" in done.answer


def test_a_denial_gives_its_reason_to_the_model(console, rt):
    turn = waiting_turn(rt, "pay")

    post(console, "/inbox", target=question_of(rt, turn).id, verdict="deny", reason="not today")

    assert "not today" in carry_on(rt, turn).answer


def test_edited_arguments_are_what_runs(console, rt):
    turn = waiting_turn(rt, "pay")
    edited = '{"order": "99", "amount": 5}'

    post(console, "/inbox", target=question_of(rt, turn).id, verdict="approve", arguments=edited)

    assert "paid 5.0 for 99" in carry_on(rt, turn).answer


def test_arguments_that_were_not_changed_count_as_not_edited(console, rt):
    turn = waiting_turn(rt, "pay")
    page = get(console, "/inbox").text
    shown = unescape(re.findall(r'<textarea name="arguments"[^>]*>(.*?)</textarea>', page, re.DOTALL)[0])

    post(console, "/inbox", target=question_of(rt, turn).id, verdict="approve", arguments=shown)

    (call,) = [call for step in views.run(rt.store, turn.run_id).steps for call in getattr(step, "calls", ())][:1]
    assert call.question.answer.edited_args is None


@pytest.mark.parametrize(
    ("arguments", "fault"),
    [("{", "Arguments: give JSON"), ("[1]", "give a JSON object"), ('{"order": 1}', "do not fit tool")],
)
def test_arguments_that_do_not_fit_leave_the_page_as_it_was(console, rt, arguments, fault):
    turn = waiting_turn(rt, "pay")

    response = post(console, "/inbox", target=question_of(rt, turn).id, verdict="approve", arguments=arguments)

    page = unescape(response.text)
    assert response.status_code == 422
    assert fault in page
    assert f">{arguments}</textarea>" in page, "what was typed is still there"
    assert question_of(rt, turn)


def test_an_answer_is_made_of_the_fields_of_the_schema(console, rt):
    turn = waiting_turn(rt, "amount")
    answer = {"answer.amount": "7", "answer.method": '"card"'}

    post(console, "/inbox", target=question_of(rt, turn).id, verdict="approve", **answer)

    assert "7 by card" in carry_on(rt, turn).answer


def test_an_answer_that_does_not_fit_says_why_and_keeps_what_was_typed(console, rt):
    turn = waiting_turn(rt, "amount")

    response = post(console, "/inbox", target=question_of(rt, turn).id, verdict="approve", **{"answer.amount": "1.5"})

    assert response.status_code == 422
    assert 'value="1.5"' in response.text
    assert question_of(rt, turn)


def test_a_question_that_was_decided_says_so(console, rt):
    turn = waiting_turn(rt, "pay")
    question = question_of(rt, turn)
    post(console, "/inbox", target=question.id, verdict="approve")

    response = post(console, "/inbox", target=question.id, verdict="deny")

    assert response.status_code == 409
    assert "Nothing was decided" in response.text


def test_several_questions_are_decided_together_or_not_at_all(console, rt):
    turns = [waiting_turn(rt, "pay", thread_id=f"t{number}") for number in range(3)]
    odd = waiting_turn(rt, "amount", thread_id="odd")
    ids = [question_of(rt, turn).id for turn in turns]

    refused = post(console, "/inbox", target=[*ids, question_of(rt, odd).id], several="1", verdict="approve")
    assert refused.status_code == 409
    assert all(question_of(rt, turn) for turn in turns)

    response = post(console, "/inbox", target=ids, several="1", verdict="approve")

    assert response.status_code == 303
    assert [views.turn(rt.store, turn.turn_id).questions for turn in turns] == [(), (), ()]


# other pages cannot send forms


FORMS = (
    "/inbox", "/runs", "/bulk", "/bulk/x/stop", "/runs/x/cancel", "/runs/x/steer", "/runs/x/retry", "/views",
    "/pulse/run", "/channels/retry", "/logout",
)  # fmt: skip


def test_a_form_without_the_token_of_the_session_is_refused(console):
    for path, token in product(FORMS, ("", "wrong", HOSTILE)):
        response = console.post(f"/console{path}", data={"csrf": token, "target": "x", "verdict": "approve"})

        assert response.status_code == 403, path
        assert "not of your session" in response.text


def test_a_form_of_another_site_is_refused_though_it_has_the_token(console, rt):
    turn = waiting_turn(rt, "pay")
    fields = {"csrf": token_in(get(console, "/inbox").text), "target": question_of(rt, turn).id, "verdict": "approve"}

    responses = [
        console.post("/console/inbox", data=fields, headers=headers)
        for headers in ({"origin": "https://evil.example"}, {"sec-fetch-site": "cross-site"})
    ]

    assert [response.status_code for response in responses] == [403, 403]
    assert question_of(rt, turn)


# hostile text


def shown_everywhere(console, rt):
    """All pages that show texts of others, by their path."""
    thread = "t" + "".join(filter(str.isprintable, HOSTILE))  # as far as an id may be so
    waiting = waiting_turn(rt, "pay " + HOSTILE, thread_id="p")
    asking = waiting_turn(rt, "amount " + HOSTILE, thread_id="a")
    done = settled(rt, "echo " + HOSTILE, thread_id=thread)
    failed = settled(rt, "fail " + HOSTILE, thread_id="f")
    paths = ["/", "/inbox", "/runs", "/threads", f"/runs/{waiting.run_id}", f"/runs/{asking.run_id}",
             f"/runs/{done.run_id}", f"/runs/{failed.run_id}", f"/runs/{done.run_id}/prompt/3"]  # fmt: skip
    pages = {path: get(console, path).text for path in paths}
    pages["thread"] = get(console, "/thread", id=done.thread_id).text
    pages["search"] = get(console, "/runs", q=f'text:"{HOSTILE}"').text if '"' not in HOSTILE else ""
    pages["fault"] = console.get("/console/runs", params={"q": f"status:{HOSTILE}"}).text
    pages["missing"] = console.get("/console/runs/" + "x" * 20, params={"done": HOSTILE}).text
    for step in views.run(rt.store, done.run_id).steps:
        for call in getattr(step, "calls", ()):
            pages[call.id] = get(console, f"/runs/{done.run_id}/calls/{call.id}").text
    return pages


def test_texts_names_arguments_and_results_are_inert_on_every_page(console, rt):
    pages = shown_everywhere(console, rt)
    assert any("<summary>Reasoning</summary><pre>&lt;/" in page for page in pages.values())
    for path, page in pages.items():
        assert "<script>alert" not in page, path
        assert "<img" not in page, path
        assert "onerror=alert(1)>" not in page.replace("&gt;", ""), path
        assert "<hx-" not in page, path
        assert "</textarea></script>" not in page, path
        assert "<b onclick" not in page, path
        assert not re.search(r'href="\s*javascript:', page, re.IGNORECASE), path
        assert "49" not in re.findall(r"\$\{x\}(..)", page), f"{path}: no template in a text is carried out"
        assert not ACTIVE.search(page), path


def test_a_call_looks_like_what_it_is_and_can_be_edited_so(console, rt):
    waiting = waiting_turn(rt, "pay " + HOSTILE, thread_id="p")
    page = unescape(get(console, "/inbox").text)
    with stream(console, f"/console/runs/{waiting.run_id}/live") as messages:
        next(messages)
        update = next(messages)

    for shown in (page, update):
        assert r"\u202egnp\u2066x\u2069\x1b]0;t\x07" in shown
        assert "\u05d0\u05d1" in shown, "letters that are written from right to left stay"
        assert not ACTIVE.search(shown)
    document = re.search(r'<textarea name="arguments"[^>]*>([^<]*)', get(console, "/inbox").text)
    assert json.loads(unescape(document[1])) == question_of(rt, waiting).arguments


def test_updates_carry_no_attributes_for_htmx(console, rt):
    """Of what lands in the page; the elements around it say where it goes."""
    turn = waiting_turn(rt, "pay " + HOSTILE)
    with stream(console, f"/console/runs/{turn.run_id}/live") as messages:
        next(messages)
        update = next(messages)

    inside = re.sub(r'<hx-(partial|upsert) hx-target="#[\w-]+" (hx-swap="\w+"|key="data-order" sort)>', "", update)
    inside = re.sub(r"</hx-(partial|upsert)>", "", inside)
    assert f"row-{turn.run_id}" in inside
    assert not re.search(r"<[^>]*\shx-", inside)
    assert "<script" not in inside


# what is sent by nobody's browser

BROKEN_ADDRESSES = (
    "/runs?before=a%00b", "/inbox?after=%00", "/inbox?agent=%00", "/inbox?thread=%00", "/thread?id=%00",
    "/threads?before=%00", "/runs/a%00b", "/runs/%00/prompt/1", "/runs/x/calls/%00", "/runs?q=agent:%00",
)  # fmt: skip


def test_an_address_with_a_nul_is_no_page(console):
    for path in BROKEN_ADDRESSES:
        response = console.get(f"/console{path}")

        assert response.status_code == 404, path
        assert "there is no such page" in response.text  # without a look into the database


def test_a_form_with_a_nul_is_refused(console, rt):
    turn = waiting_turn(rt, "pay")

    response = post(console, f"/runs/{turn.run_id}/cancel", reason="a\x00b")

    assert response.status_code == 422
    assert "holds a NUL character" in response.text


def test_a_login_form_with_many_fields_is_read(client):
    response = client.post("/console/login", data={f"field{number}": "x" for number in range(40)})

    assert response.status_code == 401


def test_each_session_gets_the_forms_of_its_own(client, rt):
    turn = waiting_turn(rt, "pay")
    pages = [f"/console/runs/{turn.run_id}/live", "/console/inbox/live"]
    with httpx.Client(base_url=client.base_url, timeout=PATIENCE) as other:
        for path in pages:
            both = [log_in(one, rt.store) for one in (client, other)]
            own = [token_in(get(one, "/inbox").text) for one in both]
            with stream(both[0], path) as first, stream(both[1], path) as second:
                sent = [next(part for part in messages if "csrf" in part) for messages in (first, second)]
            assert [token_in(part) for part in sent] == own


# who may not see texts


@pytest.fixture
def viewer(client, rt):
    """A browser with a key that reads and decides, and may not see texts."""
    key = new_key(rt, scopes=frozenset({KeyScope.READ, KeyScope.DECIDE}))
    response = client.post("/console/login", data={"key": key})
    assert response.status_code == 303, response.text
    return client


@pytest.fixture
def viewer_of(settings, rt):
    """A browser of its own, with a key of this space."""
    with contextlib.ExitStack() as stack:

        def log_in_with_key(space):
            assert space == "api"
            browser = stack.enter_context(served(web.wired(settings)))
            key = new_key(rt, scopes=frozenset({KeyScope.READ, KeyScope.DECIDE}))
            assert browser.post("/console/login", data={"key": key}).status_code == 303
            return browser

        yield log_in_with_key


def new_key(rt, **fields):
    return stages.create_key(rt.store, KeyTerms(name="k", **fields), Actor(id="cli"), rt.now()).text


def test_a_key_without_payloads_never_receives_texts(viewer, rt):
    turn = waiting_turn(rt, "pay my secret", space="api")
    done = settled(rt, "tell my secret", space="api", thread_id="done")
    run_ids = [turn.run_id, done.run_id]
    paths = ["/", "/inbox", "/runs", "/threads", *(f"/runs/{run_id}" for run_id in run_ids)]
    pages = [get(viewer, path).text for path in paths] + [get(viewer, "/thread", id=done.thread_id).text]
    for run_id in run_ids:
        with stream(viewer, f"/console/runs/{run_id}/live") as messages:
            pages += [next(messages), next(messages)]

    for page in pages:
        for text in ("my secret", "alert(1)", "paid", "123456789"):
            assert text not in page
    assert viewer.get(f"/console/runs/{done.run_id}/prompt/1").status_code == 403
    assert viewer.get("/console/runs", params={"q": "text:secret"}).status_code == 422


def test_a_key_of_one_tenant_finds_nothing_of_others(viewer, rt):
    turn = waiting_turn(rt, "pay")

    assert viewer.get(f"/console/runs/{turn.run_id}").status_code == 404
    assert viewer.get("/console/thread", params={"id": turn.thread_id}).status_code == 404
    assert turn.turn_id not in get(viewer, "/runs").text
    assert viewer.get("/console/workers").status_code == 403


def test_ids_of_others_are_not_told(viewer, rt):
    turn = waiting_turn(rt, "pay")  # on a thread that is no caller's
    missing = "0" * 20

    for id_ in (turn.turn_id, turn.run_id, turn.thread_id):
        for start in (id_, id_[:-4], id_[:4]):
            listed = viewer.get("/console/runs", params={"q": start})
            assert (listed.status_code, listed.headers.get("location")) == (422, None)
            page = viewer.get(f"/console/runs/{start}")
            assert page.status_code == 404
            assert page.text.count(id_) == page.text.count(start) * (id_ == start)
        assert viewer.get(f"/console/runs/{id_}/prompt/1").status_code in {403, 404}
    others = viewer.get(f"/console/runs/{turn.run_id}").text.replace(turn.run_id, missing)
    unknown = viewer.get(f"/console/runs/{missing}").text
    assert without_tokens(others) == without_tokens(unknown)


def without_tokens(page):
    return re.sub(r'(nonce|value)="[^"]*"', "", page)


def test_threads_of_others_are_not_told(viewer, rt):
    theirs, own = settled(rt, "hello"), settled(rt, "hello", space="api", thread_id="mine")

    page = get(viewer, "/threads").text
    assert own.thread_id in page
    assert theirs.thread_id not in page
    answers = [viewer.get("/console/threads", params={"before": name}) for name in (theirs.thread_id, "nothing")]
    assert [answer.status_code for answer in answers] == [422, 422]


def test_list_of_threads_goes_on_where_a_page_ends(console, rt, monkeypatch):
    monkeypatch.setattr("chordage.orchestrator.console.threads.PAGE", 2)
    names = [settled(rt, "hello").thread_id for _ in range(3)]

    first = get(console, "/threads").text
    assert [name in first for name in names] == [False, True, True]
    following = re.findall(r'href="([^"]*before=[^"]*)"', first)[0]
    assert names[0] in console.get(unescape(following)).text


def test_a_key_without_operate_cannot_cancel(viewer, rt):
    turn = waiting_turn(rt, "pay", space="api")

    response = post(viewer, f"/runs/{turn.run_id}/cancel")

    assert response.status_code == 403
    assert views.turn(rt.store, turn.turn_id).disposition is None


def test_an_inbox_that_was_in_the_background_learns_what_was_decided_meanwhile(console, viewer_of, rt):
    question, foreign = (question_of(rt, waiting_turn(rt, "pay", space=space)) for space in ("api", None))
    page = get(console, "/inbox").text
    for one in (question, foreign):
        stages.decide(rt, [DecisionRequest(target=one.id, action=Action.CANCEL)], source="cli")
    live = unescape(re.findall(r'hx-sse:connect="([^"]+)"', page)[0])

    with stream(console, live) as messages:
        first = "".join((next(messages), next(messages)))
    with console.stream("GET", "/console/inbox/live", headers={"last-event-id": f"question-{question.id}"}) as again:
        resumed = next(line for line in again.iter_lines() if "was denied" in line)
    with viewer_of("api").stream("GET", "/console/inbox/live", params={"has": f"{foreign.id},{question.id}"}) as others:
        reached = next(line for line in others.iter_lines() if "was denied" in line)

    assert (question.id in first, foreign.id in first, first.count("was denied")) == (True, True, 2)
    assert question.id in resumed
    assert f'#question-{foreign.id}" hx-swap="outerMorph"' not in reached


# tools of the caller

PICK = {"name": "pick", "description": "Have the customer pick a colour.", "parameters": {"type": "object"}}


def test_a_call_that_its_caller_carries_out_says_so_and_takes_a_result_in_its_place(console, rt):
    turn = waiting_turn(rt, "pick", client_tools=[PICK])
    question = question_of(rt, turn)

    for path in ("/inbox", f"/runs/{turn.run_id}"):
        card = unescape(re.findall(r'<article class="card.*?</article>', get(console, path).text, re.DOTALL)[0])
        for words in (
            "waits for its caller", "sent by", "The caller is asked to carry out exactly this", "red", "Give up on it",
            "then the model reads that the call was not carried out",
        ):  # fmt: skip
            assert words in card, words
        assert not any(
            words in card for words in ("needs permission", "Edit the arguments", "data-pick", "Make a link")
        )
    empty = post(console, "/inbox", target=question.id, verdict="approve")
    plain = post(console, "/inbox", target=question.id, verdict="approve", several="1")
    given = post(console, "/inbox", target=question.id, verdict="approve", answer="the red one")

    assert (empty.status_code, "give the result" in empty.text) == (422, True)
    assert (plain.status_code, "an answer of its own" in plain.text) == (409, True)
    assert given.headers["location"].endswith("done=approved")
    assert carry_on(rt, turn).answer == "Picked: the red one"


def test_giving_up_on_a_call_of_the_caller_is_what_the_model_reads(console, rt):
    turn = waiting_turn(rt, "pick", client_tools=[PICK])

    post(console, "/inbox", target=question_of(rt, turn).id, verdict="deny", reason="the page was closed")

    assert carry_on(rt, turn).answer.startswith(
        "Picked: The caller has not carried this call out. The reason given: the"
    )


def test_a_key_that_may_not_decide_reads_who_gives_the_result(client, rt):
    waiting_turn(rt, "pick", space="api", client_tools=[PICK])
    terms = KeyTerms(name="reader", tenant=None, scopes=frozenset({KeyScope.READ}))
    client.post("/console/login", data={"key": stages.create_key(rt.store, terms, Actor(id="cli"), rt.now()).text})

    assert "The program that sent the message gives the result" in get(client, "/inbox").text


# the run, and what can be done about it


def test_a_turn_leads_to_the_page_of_its_run(console, rt):
    done = settled(rt, "hello")

    response = console.get(f"/console/runs/{done.turn_id}")

    assert response.headers["location"] == f"/console/runs/{done.run_id}"


def test_a_waiting_run_says_why_and_offers_the_question(console, rt):
    turn = waiting_turn(rt, "pay")

    page = get(console, f"/runs/{turn.run_id}").text

    assert 'class="why"' in page
    assert "b-waiting" in page
    assert f"question-{question_of(rt, turn).id}" in page


def test_a_cancelled_run_is_over(console, rt):
    turn = waiting_turn(rt, "pay")

    response = post(console, f"/runs/{turn.run_id}/cancel", reason="enough")

    assert response.headers["location"].endswith("done=cancelled")
    assert views.turn(rt.store, turn.turn_id).disposition is Disposition.CANCELLED
    assert "enough" in get(console, f"/runs/{turn.run_id}").text


def test_retry_sends_the_same_message_again(console, rt):
    done = settled(rt, "fail this", thread_id="again")

    response = post(console, f"/runs/{done.run_id}/retry")

    new = response.headers["location"].rpartition("/")[2].partition("?")[0]
    assert views.turn(rt.store, new).text == "fail this"
    assert views.turn(rt.store, new).thread_id == done.thread_id


def test_the_first_message_is_sent_from_the_empty_page(console, rt):
    assert "Send" in get(console, "/runs").text

    response = post(console, "/runs", page="/runs", text="pay for me")

    turn_id = response.headers["location"].rpartition("/")[2]
    assert views.turn(rt.store, turn_id).text == "pay for me"
    assert "queued" in get(console, f"/runs/{turn_id}").text


def test_an_update_comes_after_a_decision(console, rt):
    turn = waiting_turn(rt, "pay")
    with stream(console, f"/console/runs/{turn.run_id}/live") as messages:
        assert "suspended" in "".join((next(messages), next(messages)))
        post(console, "/inbox", target=question_of(rt, turn).id, verdict="approve")
        carry_on(rt, turn)
        update = next(message for message in messages if "answered" in message and "said-by-agent" in message)

    assert 'hx-target="#run-actions"' in update
    assert all(word in update for word in (">Retry<", ">New message<", ">Send as a new turn<"))
    assert not any(word in update for word in (">Cancel<", ">Steer<", "/cancel"))


def test_a_message_for_a_run_that_ended_meanwhile_is_kept_and_sent_as_a_new_turn(console, rt):
    turn = waiting_turn(rt, "pay")
    post(console, f"/runs/{turn.run_id}/cancel")

    refused = post(console, f"/runs/{turn.run_id}/steer", text="and then this")
    sent = post(console, f"/runs/{turn.run_id}/steer", text="and then this", new="1")

    assert refused.status_code == 409
    assert "nothing was sent" in refused.text
    assert ">and then this</textarea>" in refused.text
    new = views.turn(rt.store, sent.headers["location"].rpartition("/")[2].partition("?")[0])
    assert (new.text, new.thread_id, new.status) == ("and then this", turn.thread_id, "queued")


def test_an_open_inbox_says_who_decided_a_question_meanwhile(console, rt):
    question = question_of(rt, waiting_turn(rt, "pay"))
    with stream(console, "/console/inbox/live") as messages:
        assert "1 open, oldest first" in "".join((next(messages), next(messages)))
        stages.decide(rt, [DecisionRequest(target=question.id, action=Action.CANCEL)], source="cli")
        update = next(message for message in messages if "was denied" in message)

    assert f'hx-target="#question-{question.id}" hx-swap="outerMorph"' in update
    assert re.search(r"This question was denied at \S+ \S+ UTC by cli\.", update)
    assert "Nothing waits for you." in update
    assert "<form" not in update


def test_a_finished_run_has_a_stream_that_ends(console, rt):
    done = settled(rt, "hello")

    with stream(console, f"/console/runs/{done.run_id}/live") as messages:
        last = list(messages)[-1]

    assert last == "event: over\nover"


def test_a_stream_of_an_unknown_run_is_refused_before_its_first_byte(console):
    assert console.get("/console/runs/nope-nope/live").status_code == 404


def test_an_unknown_page_and_a_wrong_method_are_pages_too(console):
    for response in (console.get("/console/nothing"), console.get("/console/runs/bulk/x/y")):
        assert response.status_code == 404
        assert response.headers["content-type"].startswith("text/html")


def test_reading_takes_no_script(console, rt):
    """All that a page says is in its first HTML."""
    done = settled(rt, "echo this", thread_id="t")

    page = unescape(get(console, f"/runs/{done.run_id}").text)

    assert page.count("<rect class=") > 2
    assert "Arguments" in page
    assert "said-by-agent" in page


def test_searches_are_links(console, rt):
    waiting_turn(rt, "pay")
    done = settled(rt, "hello", thread_id="x")

    assert done.turn_id not in get(console, "/runs", q="status:waiting").text
    assert done.turn_id in get(console, "/runs", q="status:answered hello").text
    assert console.get("/console/runs", params={"q": done.turn_id[:23]}).status_code in {303, 422}


@pytest.fixture
def priced(settings):
    """One dollar for each token of a reply."""
    file = settings.room_path / "agent.toml"
    stops = "[stops]\ntoken_budget = 1000\ncost_budget = 500\n"
    file.write_text(f'{file.read_text()}{stops}[prices]\n"scripted:script.yaml" = {{ input = 0, output = 1e6 }}\n')


@pytest.mark.usefixtures("priced")
def test_cost_is_shown_at_every_level(console, rt):
    turn = settled(rt, "hi there")
    cost = f"${turn.usage.output_tokens}.00"

    for page in (
        f"/runs/{turn.run_id}",
        f"/thread?id={turn.thread_id}",
        "/runs?q=cost:>1",
        "/agents",
        "/usage?by=agent",
    ):
        assert cost in get(console, page).text, page
    head = get(console, f"/runs/{turn.run_id}").text
    assert f"{cost} of $500.00" in head
    assert "of 1,000" in head
    assert turn.turn_id not in get(console, "/runs?q=cost:<1").text


def test_an_unknown_cost_is_never_shown_as_0(console, rt):
    turn = settled(rt, "hi there")

    for page in (f"/runs/{turn.run_id}", f"/thread?id={turn.thread_id}", "/agents", "/usage?by=tenant&days=1"):
        text = get(console, page).text
        assert "cost unknown" in text, page
        assert "$0" not in text, page
    assert turn.turn_id not in get(console, "/runs?q=cost:<1").text
