"""Sessions of the console, on pages made here: logins, cookies, the tokens of forms, and keys that are taken back."""

from __future__ import annotations

from base64 import urlsafe_b64decode, urlsafe_b64encode
from contextlib import ExitStack
from datetime import timedelta
from functools import partial
from typing import Annotated

import pytest
from click.testing import CliRunner
from fastapi import APIRouter, Header, Request, Response
from fastapi.responses import PlainTextResponse

from chordage.orchestrator import stages, views
from chordage.orchestrator.api import authentication, session_cookies, sessions
from chordage.orchestrator.core.audit import CLI
from chordage.orchestrator.core.callers import KeyScope
from chordage.orchestrator.core.keys import KeyTerms
from chordage.workers import web
from chordage.workers.cli import main
from support.console_room import log_in, token_in
from support.web_server import served

pytestmark = pytest.mark.redis

pages = APIRouter(prefix="/pages")


@pages.post("/login")
def login(request: Request, response: Response, key: Annotated[str, Header()]) -> str:
    return sessions.login_with_key(request, response, key).id


@pages.get("/link")
def link(request: Request, response: Response, token: str) -> str:
    return sessions.login_with_link(request, response, token).id


@pages.get("/me")
def me(request: Request) -> dict[str, object]:
    caller = sessions.caller_of_session(request)
    token = sessions.csrf_token(request)
    if caller is None:
        return {"id": None, "token": token}
    return {"id": caller.id, "reach": caller.reach, "address": caller.address, "token": token}


@pages.post("/form")
def form(request: Request, token: Annotated[str, Header()] = "") -> PlainTextResponse:
    sessions.check_csrf(request, token)
    return PlainTextResponse("changed")


@pages.post("/logout")
def leave(request: Request, response: Response) -> None:
    sessions.logout(request, response)


@pytest.fixture
def app(settings):
    made = web.wired(settings)
    made.include_router(pages)
    return made


@pytest.fixture
def client(app):
    with served(app) as one:
        yield one


@pytest.fixture
def new_key(rt):
    terms = KeyTerms(name="n", scopes=frozenset({KeyScope.READ}), tenant="acme")
    return stages.create_key(rt.store, terms, CLI, rt.now())


@pytest.fixture
def logged_in(client, new_key):
    assert client.post("/pages/login", headers={"key": new_key.text}).json() == new_key.key.id
    return client


def cookie_of(client):
    return client.cookies[session_cookies.COOKIE]


def test_a_key_becomes_a_session(logged_in, new_key):
    me = logged_in.get("/pages/me").json()

    assert (me["id"], me["reach"], me["address"]) == (new_key.key.id, "api@acme", "127.0.0.1")
    assert me["token"]


def test_the_cookie_is_closed_to_scripts_and_to_other_sites_and_holds_no_secret(client, new_key):
    header = client.post("/pages/login", headers={"key": new_key.text}).headers["Set-Cookie"]
    attributes = {part.strip().lower() for part in header.split(";")}

    assert {"httponly", "samesite=strict", "path=/", "max-age=43200"} <= attributes
    assert "secure" not in attributes
    body = cookie_of(client).partition(".")[0]
    assert new_key.text.split("_")[2] not in urlsafe_b64decode(body + "==").decode()


def test_behind_https_the_cookie_is_for_https_alone(app, new_key):
    with served(app, forwarded_allow_ips="*") as client:
        headers = {"key": new_key.text, "X-Forwarded-Proto": "https"}
        cookie = client.post("/pages/login", headers=headers).headers["Set-Cookie"]

    assert "secure" in {part.strip().lower() for part in cookie.split(";")}


@pytest.mark.parametrize("typed", ["", "nonsense", "ck_aaaaaaaaaaaa_" + "0" * 43 + "_000000"])
def test_a_wrong_key_opens_nothing(client, typed):
    response = client.post("/pages/login", headers={"key": typed})

    assert response.status_code == 401
    assert "Set-Cookie" not in response.headers
    assert client.get("/pages/me").json()["id"] is None


def test_a_session_opens_no_endpoint_of_the_api(settings, new_key):
    """There a page of another site could use it."""
    app = web.wired(settings.model_copy(update={"host": "0.0.0.0"}))
    app.include_router(pages)
    with served(app) as client:
        client.post("/pages/login", headers={"key": new_key.text})
        assert client.get("/pages/me").json()["id"] == new_key.key.id
        assert client.get("/inbox").status_code == 401


def test_a_link_works_once_and_for_the_operator(client, rt):
    token = stages.make_link(rt.store, rt.now())

    first, second = (client.get("/pages/link", params={"token": token}) for _ in range(2))

    assert (first.status_code, first.json()) == (200, "local")
    assert (second.status_code, "chordage keys link" in second.json()["detail"]) == (401, True)
    me = client.get("/pages/me").json()
    assert (me["id"], me["reach"]) == ("local", None)


@pytest.mark.parametrize("token", ["", "guessed", "x" * 5000])
def test_a_link_that_was_never_made_opens_nothing(client, token):
    assert client.get("/pages/link", params={"token": token}).status_code == 401


def test_a_browser_that_looks_ahead_does_not_use_the_link_up(client, rt):
    token = stages.make_link(rt.store, rt.now())

    ahead = client.get("/pages/link", params={"token": token}, headers={"Sec-Purpose": "prefetch;prerender"})

    assert ahead.status_code == 403
    assert client.get("/pages/link", params={"token": token}).status_code == 200


def test_an_old_link_opens_nothing(client, rt):
    token = stages.make_link(rt.store, rt.now() - stages.keys.LINK_LASTS)

    assert client.get("/pages/link", params={"token": token}).status_code == 401


def test_processes_of_the_server_know_each_others_sessions(settings, new_key):
    with ExitStack() as stack:
        apps = [web.wired(settings) for _ in range(2)]
        for app in apps:
            app.include_router(pages)
        first, second = (stack.enter_context(served(app)) for app in apps)
        first.post("/pages/login", headers={"key": new_key.text})
        token = first.get("/pages/me").json()["token"]
        second.cookies.set(session_cookies.COOKIE, cookie_of(first))

        assert second.get("/pages/me").json()["id"] == new_key.key.id
        assert second.post("/pages/form", headers={"token": token}).text == "changed"


def changed(cookie):
    """What a person could make of the cookie, each under what was done."""
    body, _, mac = cookie.partition(".")
    other = urlsafe_b64encode(b'["", 99999999999, "n"]').decode().rstrip("=")
    return {
        "another key": f"{other}.{mac}",
        "no signature": body,
        "empty signature": f"{body}.",
        "half a signature": f"{body}.{mac[:-1]}",
        "twice": f"{cookie}.{mac}",
        "nonsense": "x",
        "no cookie": "",
        "no JSON": f"e30.{mac}",
    }


def test_a_cookie_that_was_changed_is_worth_nothing(logged_in):
    for what, cookie in changed(cookie_of(logged_in)).items():
        me = logged_in.get("/pages/me", headers={"Cookie": f"{session_cookies.COOKIE}={cookie}"})
        assert (me.status_code, me.json()) == (200, {"id": None, "token": ""}), what


def test_a_session_ends_after_twelve_hours(client, rt, new_key, monkeypatch):
    monkeypatch.setattr(session_cookies, "LASTS", timedelta(seconds=-1))
    client.post("/pages/login", headers={"key": new_key.text})

    assert client.get("/pages/me").json()["id"] is None


@pytest.mark.parametrize("how", ["revoked", "expired"])
def test_a_session_ends_with_its_key(client, rt, monkeypatch, how):
    now = rt.now()
    expires_at = now + timedelta(seconds=1) if how == "expired" else None
    terms = KeyTerms(name="n", scopes=frozenset({KeyScope.READ}), expires_at=expires_at)
    new = stages.create_key(rt.store, terms, CLI, now)
    cookie = session_of(rt, new, now)
    assert cookie.caller(cookie.value) is not None

    if how == "revoked":
        stages.revoke_key(rt.store, new.key.id, CLI, now)
    cookie.pass_seconds(authentication.BELIEVED)

    assert cookie.caller(cookie.value) is None


class session_of:  # noqa: N801 - reads as what it makes
    """A session of this key, by a clock of its own."""

    def __init__(self, rt, new, now):
        self._now, self._clock = now, 0.0
        rows = authentication.KeyRows(find=lambda key: stages.find_key(rt.store, key), record_use=lambda _key: None)
        authenticate = authentication.Authentication(
            rows, address="127.0.0.1", now=lambda: self._now, clock=lambda: self._clock
        )
        sessions_of = session_cookies.SessionRows(
            begin=partial(stages.begin_session, rt.store),
            is_open=lambda session_id: stages.session_is_open(rt.store, session_id, self._now),
            leave=partial(stages.leave_session, rt.store),
        )
        made = session_cookies.Sessions(
            authenticate, secret=lambda: b"s" * 32, use_link=lambda _token: False, rows=sessions_of,
            now=lambda: self._now, clock=lambda: self._clock,
        )  # fmt: skip
        self.value = made.begin_with_key(new.text, None)[1]
        self.caller, self.leave = made.caller, made.leave

    def pass_seconds(self, seconds):
        self._now, self._clock = self._now + timedelta(seconds=seconds), self._clock + seconds


def test_a_person_who_logs_out_has_no_session(logged_in):
    logged_in.post("/pages/logout")

    assert session_cookies.COOKIE not in logged_in.cookies
    assert logged_in.get("/pages/me").json()["id"] is None


def test_the_cookie_of_a_person_who_logged_out_is_worth_nothing(logged_in):
    cookie = cookie_of(logged_in)
    logged_in.post("/pages/logout")

    logged_in.cookies.set(session_cookies.COOKIE, cookie)

    assert logged_in.get("/pages/me").json()["id"] is None


def test_a_session_that_is_ended_elsewhere_ends_within_five_seconds(rt, new_key):
    session = session_of(rt, new_key, rt.now())
    assert session.caller(session.value) is not None

    stages.end_sessions(rt.store, CLI, rt.now())

    session.pass_seconds(authentication.BELIEVED - 1)
    assert session.caller(session.value) is not None
    session.pass_seconds(1)
    assert session.caller(session.value) is None


# Lists, and ending them.


@pytest.fixture
def admin(rt):
    def make(tenant=None):
        terms = KeyTerms(name="a", scopes=frozenset({KeyScope.ADMIN}), tenant=tenant)
        return {"X-Api-Key": stages.create_key(rt.store, terms, CLI, rt.now()).text}

    return make


@pytest.fixture
def by_link(rt, app):
    """A browser that came with a link."""
    with served(app) as browser:
        assert browser.get("/pages/link", params={"token": stages.make_link(rt.store, rt.now())}).status_code == 200
        yield browser


def id_in(browser):
    return browser.get("/pages/me").json()["id"]


def test_sessions_are_listed_in_pages_newest_first(client, logged_in, by_link, admin, new_key):
    first = client.get("/sessions", params={"limit": 1}, headers=admin()).json()
    second = client.get("/sessions", params={"limit": 1, "after": first["next"]}, headers=admin()).json()

    assert [one["key_id"] for one in (*first["data"], *second["data"])] == [None, new_key.key.id]
    assert (second["next"], second["data"][0]["address"], second["data"][0]["tenant"]) == (None, "127.0.0.1", "acme")
    assert cookie_of(by_link) not in client.get("/sessions", headers=admin()).text


def test_one_session_is_ended_and_the_others_stay(client, logged_in, by_link, admin, new_key):
    linked = next(one for one in client.get("/sessions", headers=admin()).json()["data"] if one["key_id"] is None)

    ended = client.delete(f"/sessions/{linked['id']}", headers=admin())

    assert ended.json() == {"ended": 1}
    assert (id_in(by_link), id_in(logged_in)) == (None, new_key.key.id)
    assert client.delete(f"/sessions/{linked['id']}", headers=admin()).status_code == 404


def test_all_sessions_are_ended_or_those_of_a_key(client, logged_in, by_link, admin, new_key):
    assert client.delete("/sessions", params={"key": new_key.key.id}, headers=admin()).json() == {"ended": 1}
    assert (id_in(by_link), id_in(logged_in)) == ("local", None)

    assert client.delete("/sessions", headers=admin()).json() == {"ended": 1}
    assert id_in(by_link) is None


def test_a_tenant_ends_its_own_sessions_alone(client, logged_in, by_link, admin, new_key):
    ours, others = admin("acme"), admin("umbrella")
    (listed,) = client.get("/sessions", headers=ours).json()["data"]

    assert client.get("/sessions", headers=others).json()["data"] == []
    assert client.delete(f"/sessions/{listed['id']}", headers=others).status_code == 404
    assert client.delete("/sessions", headers=others).json() == {"ended": 0}
    assert client.delete("/sessions", headers=ours).json() == {"ended": 1}
    assert (id_in(by_link), id_in(logged_in)) == ("local", None)


def test_sessions_are_ended_from_the_command_line(settings, rt, logged_in, monkeypatch):
    monkeypatch.setenv("CHORDAGE_ROOM", str(settings.room))
    monkeypatch.setenv("CHORDAGE_DATABASE_URL", settings.database_url.get_secret_value())

    def run(*words):
        return CliRunner().invoke(main, ["keys", *words])

    (listed,) = run("sessions").output.splitlines()
    session = listed.split("\t")[0]
    assert session.isalnum(), "an id that begins with a hyphen would be an option"
    assert run("logout").exit_code == 2
    assert "1 session ended" in run("logout", session).output
    assert run("logout", "nonsense").exit_code == 1
    assert "0 sessions ended" in run("logout", "--all").output
    assert (run("sessions").output, views.session_page(rt.store, rt.now()).data) == ("", [])


def test_the_console_ends_sessions(app, client, rt, new_key):
    console = log_in(client, rt.store)
    with served(app) as other:
        other.post("/pages/login", headers={"key": new_key.text})
        page = console.get("/console/sessions").text
        (theirs,) = [one for one in views.session_page(rt.store, rt.now()).data if one.key_id]
        sent = {"csrf": token_in(page), "session": theirs.id}
        assert console.post("/console/sessions/end", data={"session": theirs.id}).status_code == 403
        assert console.post("/console/sessions/end", data=sent).status_code == 303

        assert id_in(other) is None
        assert console.get("/console/sessions").text.count("<tr data-row>") == 1
        console.post("/console/sessions/end", data={"csrf": token_in(page)})
        assert console.get("/console/sessions").status_code == 303


def test_a_caller_of_the_console_sees_and_ends_the_sessions_of_its_own_key(app, client, rt, by_link, new_key):
    client.post("/console/login", data={"key": new_key.text})
    page = client.get("/console/sessions").text
    (linked,) = [one for one in views.session_page(rt.store, rt.now()).data if one.key_id is None]

    assert page.count("<tr data-row>") == 1
    client.post("/console/sessions/end", data={"csrf": token_in(page), "session": linked.id})
    client.post("/console/sessions/end", data={"csrf": token_in(page)})
    assert (id_in(by_link), id_in(client)) == ("local", None)


# Forms.


def test_a_form_with_the_token_of_its_session_changes_something(logged_in):
    token = logged_in.get("/pages/me").json()["token"]
    own = {"Sec-Fetch-Site": "same-origin", "Origin": str(logged_in.base_url).rstrip("/")}

    assert logged_in.post("/pages/form", headers={"token": token}).text == "changed"
    assert logged_in.post("/pages/form", headers={"token": token, **own}).text == "changed"


def test_a_form_without_its_token_changes_nothing(logged_in, rt):
    token = logged_in.get("/pages/me").json()["token"]
    for sent in ("", "x", token[:-1], f"{token}x", "é".encode()):
        assert logged_in.post("/pages/form", headers={"token": sent}).status_code == 403


def test_a_form_of_one_session_is_worth_nothing_in_another(client, new_key):
    client.post("/pages/login", headers={"key": new_key.text})
    token = client.get("/pages/me").json()["token"]
    client.post("/pages/login", headers={"key": new_key.text})

    assert client.post("/pages/form", headers={"token": token}).status_code == 403
    client.cookies.clear()
    assert client.post("/pages/form", headers={"token": token}).status_code == 403


@pytest.mark.parametrize(
    "page",
    [
        {"Sec-Fetch-Site": "cross-site"},
        {"Sec-Fetch-Site": "same-site"},
        {"Origin": "https://evil.example"},
        {"Origin": "http://127.0.0.1:1"},
        {"Origin": "null"},
    ],
    ids=str,
)
def test_a_form_on_a_page_of_another_site_changes_nothing_and_logs_nobody_in(logged_in, new_key, page):
    token = logged_in.get("/pages/me").json()["token"]

    assert logged_in.post("/pages/form", headers={"token": token, **page}).status_code == 403
    assert logged_in.post("/pages/login", headers={"key": new_key.text, **page}).status_code == 403
