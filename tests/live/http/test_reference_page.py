"""`/docs` is one page that loads nothing and runs nothing."""

from __future__ import annotations

import base64
import hashlib
import re

import pytest

from chordage.orchestrator.api.reference import page_of
from support.web_server import served, server_with


@pytest.fixture(scope="module")
def answer():
    with served(server_with()) as client:
        yield client.get("/docs")


def test_every_operation_is_on_the_page(answer):
    document = server_with().openapi()
    ids = {op["operationId"] for item in document["paths"].values() for op in item.values()}

    assert answer.headers["content-type"] == "text/html; charset=utf-8"
    assert ids == {one for one in ids if f'id="{one.replace("_", "-")}"' in answer.text}


def test_links_inside_the_page_lead_somewhere(answer):
    targets = set(re.findall(r'href="#([^"]+)"', answer.text))

    assert targets
    assert targets <= set(re.findall(r'id="([^"]+)"', answer.text))


def test_the_page_loads_nothing_and_runs_no_script(answer):
    policy = answer.headers["Content-Security-Policy"]
    style = re.search(r"<style>(.*?)</style>", answer.text, re.DOTALL)[1]
    digest = base64.b64encode(hashlib.sha256(style.encode()).digest()).decode()

    assert "default-src 'none'" in policy
    assert f"'sha256-{digest}'" in policy, "the browser takes its own style"
    assert "<script" not in answer.text
    assert not re.findall(r'(?:src|href)="(?:https?:)?//', answer.text)
    assert " style=" not in answer.text


def test_the_framework_serves_no_other_page():
    with served(server_with()) as client:
        assert client.get("/redoc").status_code == 404


def test_texts_of_the_document_are_inert():
    text = "<img src=x onerror=alert(1)> & `<b>` **<i>**"
    parameter = {"name": text, "in": "query", "schema": {"type": text}, "description": text}
    operation = {"operationId": "o", "summary": text, "description": text, "parameters": [parameter]}
    operation["responses"] = {"200": {"description": text}}
    forms = {text: {"description": text, "properties": {text: {"enum": [text]}}, "examples": [{text: text}]}}
    page = page_of({
        "info": {"title": text, "version": text, "description": text}, "paths": {f"/{text}": {"get": operation}},
        "components": {"schemas": forms},
    })  # fmt: skip

    assert "<img" not in page
    assert "<b>" not in page
    assert "<i>" not in page
