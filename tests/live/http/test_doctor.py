"""The report of `chordage doctor` over HTTP and in the console, for those who may operate the fleet."""

from __future__ import annotations

import pytest

from chordage.orchestrator.core.callers import KeyScope
from support.console_room import log_in
from support.waiting import until
from support.web_server import PROBLEM

pytestmark = pytest.mark.redis


def test_report_has_every_finding_with_what_cures_it(client):
    answer = client.get("/doctor")

    report = answer.json()
    found = {finding["code"]: finding for finding in report["findings"]}
    assert (answer.status_code, report["state"]) == (200, "errors")
    assert found["no_worker"]["text"] == "no process carries out work: what comes in is stored, and waits."
    assert found["no_worker"]["remedy"] == "chordage start"
    assert {probe["probe"] for probe in report["probes"]} >= {"database", "redis", "work", "keys"}


@pytest.mark.parametrize("scopes", [(KeyScope.READ,), (KeyScope.SUBMIT, KeyScope.DECIDE)])
def test_key_that_may_not_operate_is_refused(client, key, scopes):
    answer = client.get("/doctor", headers=key(*scopes))

    assert (answer.status_code, answer.headers["content-type"]) == (403, PROBLEM)


def test_key_of_a_tenant_is_refused(client, key):
    assert client.get("/doctor", headers=key(KeyScope.OPERATE, tenant="acme")).status_code == 403


def test_overview_shows_the_findings_to_those_who_may_operate(client, rt):
    console = log_in(client, rt.store)
    text = "no process carries out work: what comes in is stored, and waits."

    until(lambda: text in console.get("/console/").text, "the first report is made and shown")

    page = console.get("/console/").text
    assert page.index('id="needs"') < page.index('id="groups"') < page.index('id="doctor"')
    assert "<code>chordage start</code>" in page
