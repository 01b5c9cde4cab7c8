"""Which metrics there are, the text that monitors read, and its bounds."""

from __future__ import annotations

import json
import re

import pytest
import yaml
from prometheus_client.openmetrics.parser import text_string_to_metric_families as parse_openmetrics
from prometheus_client.parser import text_string_to_metric_families as parse

from chordage.orchestrator.core import metrics
from chordage.orchestrator.core.metrics import FAMILIES, SumKey, count, observe
from chordage.orchestrator.core.metrics_text import text_of
from support.repository import ROOT

MONITORING = ROOT / "examples" / "monitoring"
PART = re.compile(r"_(bucket|count|sum)$")


def families(text, read=parse):
    return {family.name: family for family in read(text)}


def test_every_family_is_there_before_anything_is_known_of_it():
    text = text_of(FAMILIES.values(), {}, openmetrics=False)

    assert set(re.findall(r"^# TYPE (\S+)", text, re.MULTILINE)) == set(FAMILIES)
    assert set(re.findall(r"^# HELP (\S+) \S", text, re.MULTILINE)) == set(FAMILIES)
    assert {"tenant", "thread"} & {label for family in FAMILIES.values() for label in family.labels} == set()


@pytest.mark.parametrize(("openmetrics", "read"), [(False, parse), (True, parse_openmetrics)])
def test_text_is_what_the_parsers_of_prometheus_read(openmetrics, read):
    sums = metrics.Sums()
    strange = 'a\\b"c\nd'
    count(sums, metrics.TOOL_CALLS, strange, "failed", by=3)
    count(sums, metrics.MODEL_COST, "ada", "m", by=1_500_000_000)
    for seconds in (0.01, 0.2, 40, 1e6):
        observe(sums, metrics.TURN_WAIT, seconds, "chat")

    found = families(text_of(FAMILIES.values(), sums, openmetrics=openmetrics), read)

    (calls,) = found["chordage_tool_calls"].samples
    assert (calls.labels, calls.value) == ({"tool": strange, "status": "failed"}, 3)
    assert found["chordage_model_cost_usd"].samples[0].value == 1.5
    waits = {(one.name, one.labels.get("le")): one.value for one in found["chordage_turn_wait_seconds"].samples}
    assert waits["chordage_turn_wait_seconds_bucket", "0.05"] == 1
    assert waits["chordage_turn_wait_seconds_bucket", "60.0"] == 3
    assert waits["chordage_turn_wait_seconds_bucket", "+Inf"] == 4
    assert waits["chordage_turn_wait_seconds_count", None] == 4
    assert waits["chordage_turn_wait_seconds_sum", None] == pytest.approx(1_000_040.21)


def test_waits_are_told_apart_past_one_hour():
    assert max(metrics.TURN_WAIT.bounds) > 3600


def test_a_time_below_zero_counts_as_none():
    sums = metrics.Sums()
    observe(sums, metrics.JOIN_DELAY, -0.5)

    assert sums[SumKey(metrics.JOIN_DELAY.name, ())] == 0
    assert sums[SumKey(metrics.JOIN_DELAY.name, (), 5)] == 1


def test_a_label_is_cut_and_holds_no_zero_byte():
    sums = metrics.Sums()
    count(sums, metrics.TOOL_CALLS, "x\x00" + "y" * 500, "failed")

    ((key, _),) = sums.items()
    assert len(key.labels[0]) < 101
    assert "\x00" not in key.labels[0]


def names_in(text):
    return {PART.sub("", name) if name not in FAMILIES else name for name in re.findall(r"chordage_\w+", text)}


def test_every_name_in_the_dashboard_and_the_rules_exists_and_every_metric_is_shown():
    dashboard = json.loads((MONITORING / "dashboard.json").read_text())
    shown = [target["expr"] for panel in dashboard["panels"] for target in panel["targets"]]
    rules = (MONITORING / "alerts.yml").read_text()

    assert names_in(" ".join(shown)) == set(FAMILIES)
    assert names_in(rules) <= set(FAMILIES)
    labels = {label for expr in [*shown, rules] for label in re.findall(r"by \(([^)]*)\)", expr)}
    used = {name.strip() for listed in labels for name in listed.split(",")}
    assert used <= {"le", *(label for family in FAMILIES.values() for label in family.labels)}


def test_each_alert_is_in_the_documentation():
    page = (ROOT / "docs" / "how-to" / "monitoring.md").read_text()
    alerts = re.findall(r"- alert: (\w+)", (MONITORING / "alerts.yml").read_text())

    assert len(alerts) == 8
    assert [alert for alert in alerts if f"| [`{alert}`](runbooks.md#{alert.lower()}) |" not in page] == []
    assert [name for name in FAMILIES if f"`{name}`" not in page] == []


def test_each_alert_links_to_its_runbook():
    (group,) = yaml.safe_load((MONITORING / "alerts.yml").read_text())["groups"]
    linked = {rule["alert"]: rule["annotations"]["runbook"].split("#") for rule in group["rules"]}
    page = (ROOT / "docs" / "how-to" / "runbooks.md").read_text()
    sections = dict(re.findall(r"^### (\w+)\n\n(.+?)(?=\n#|\Z)", page, re.MULTILINE | re.DOTALL))

    assert sections.keys() == linked.keys()
    assert all("`chordage " in text for text in sections.values()), "each names the command to begin with"
    for alert, (path, heading) in linked.items():
        assert (ROOT / path).read_text() == page
        assert heading == alert.lower()
