"""The API inside a FastAPI app of others, below a prefix."""

from __future__ import annotations

import pytest
from fastapi import Depends, FastAPI, HTTPException, Request

from chordage.workers import web
from support.web_server import PROBLEM, finish, mounted, served

pytestmark = pytest.mark.redis


@pytest.fixture
def client(settings):
    with served(mounted(settings, {}, prefix="/agents/v1")) as client:
        yield client


def test_a_turn_is_found_where_its_receipt_says(client, rt):
    answer = client.post("/agents/v1/turns", json={"text": "hello"})

    location = answer.headers["Location"]
    assert location == f"/agents/v1/turns/{answer.json()['turn_id']}"
    finish(rt, answer.json()["turn_id"])
    assert client.get(location).json()["answer"] == "You said: hello"


def test_locations_have_the_prefix_of_the_proxy_too(settings):
    with served(mounted(settings, {}, prefix="/v1"), root_path="/proxy") as client:
        made = client.post("/v1/turns", json={"text": "hello"})
        cancelled = client.post(f"/v1/turns/{made.json()['turn_id']}/cancel", json={})
        again = client.post(f"/v1/turns/{made.json()['turn_id']}/retry", json={})

    assert made.headers["Location"] == f"/proxy/v1/turns/{made.json()['turn_id']}"
    assert cancelled.status_code == 200
    assert again.headers["Location"] == f"/proxy/v1/turns/{again.json()['turn_id']}"


def test_errors_are_problem_documents_in_any_app(client):
    answers = [
        client.get("/agents/v1/turns/nothing"),
        client.post("/agents/v1/turns", json={"text": ""}),
        client.post("/agents/v1/turns", json={"text": "x", "nothing": 1}),
        client.post("/agents/v1/turns", content="{", headers={"Content-Type": "application/json"}),
        client.post("/agents/v1/turns", data={"text": "x"}),
        client.get("/agents/v1/turns?satus=done"),
    ]

    assert [answer.status_code for answer in answers] == [404, 422, 422, 400, 415, 422]
    assert answers[-1].json()["detail"] == "satus: there is no such parameter; did you mean status?"
    assert {answer.headers["content-type"] for answer in answers} == {PROBLEM}


def test_the_app_says_who_may_come_in(settings):
    def login(request: Request) -> None:
        if request.headers.get("x-login") != "yes":
            raise HTTPException(401)

    app = FastAPI()
    app.include_router(web.router_for(settings), prefix="/v1", dependencies=[Depends(login)])
    with served(app) as client:
        refused, taken = client.get("/v1/turns"), client.get("/v1/turns", headers={"x-login": "yes"})

    assert (refused.status_code, taken.status_code) == (401, 200)


def test_the_app_documents_the_api_with_its_own(client):
    paths = client.get("/openapi.json").json()["paths"]

    assert paths["/agents/v1/turns"]["post"]["operationId"] == "submit_turn"
    assert {"/agents/v1/health", "/agents/v1/runs/{run_id}"} <= set(paths)
