"""What the digest of a definition depends on, what a definition hides, and how two are compared."""

from __future__ import annotations

import json
import math
from dataclasses import fields, replace
from datetime import date

import pytest

from chordage.orchestrator.core.agent import (
    AgentSpec,
    CompactionSpec,
    Effect,
    Limits,
    MixedRound,
    OnUnknown,
    OutOfScope,
    OutputUse,
    Placement,
    PlanSpec,
    PluginUse,
    SubAgent,
    ToolMode,
    WhenBusy,
    WhenChanged,
    WhileWaiting,
)
from chordage.orchestrator.core.agent_versions import (
    LENGTH,
    AgentVersion,
    DiffKind,
    difference,
    fingerprint,
    plain,
    restored,
    version_of,
)

ADA = AgentSpec(name="ada", model="openai:one", instructions="Be kind.")


def version(agent: AgentSpec = ADA) -> AgentVersion:
    return version_of(agent.name, {"agent": plain(agent)})


def test_the_order_of_keys_does_not_matter():
    one, other = {"a": 1, "b": {"c": 2, "d": 3}}, {"b": {"d": 3, "c": 2}, "a": 1}

    assert version_of("ada", one).digest == version_of("ada", other).digest
    assert len(version_of("ada", one).digest) == LENGTH


def test_a_digest_stays_what_it_was():
    """It is stored, and machines compare it: a change of this value makes every version of every fleet a new one."""
    assert version().digest == "7c5f2b356ea46046a35de8671a2a4de3"


@pytest.mark.parametrize(
    "change",
    [
        {"instructions": "Be brief."}, {"model": "openai:two"}, {"params": {"temperature": 0.1}},
        {"limits": Limits(max_rounds=3)}, {"tools": ("shop:pay",)}, {"strategy": "direct"},
        {"plugins": (PluginUse(use="stops", options={"token_budget": 5}),)},
    ],
    ids=lambda change: next(iter(change)),
)  # fmt: skip
def test_what_decides_the_behaviour_changes_the_digest(change):
    fields = {"name": "ada", "model": "openai:one", "instructions": "Be kind.", **change}

    assert version(AgentSpec(**fields)).digest != version().digest


def test_what_has_its_default_is_left_out():
    assert plain(ADA) == {"name": "ada", "model": "openai:one", "instructions": "Be kind."}
    assert plain(AgentSpec(name="ada", model="m", limits=Limits(timeout=5.0)))["limits"] == {"timeout": 5.0}


def test_a_digest_is_no_part_of_what_it_is_made_of():
    assert (
        version(AgentSpec(name="ada", model="m", digest="abc")).digest
        == version(AgentSpec(name="ada", model="m")).digest
    )


def test_everything_becomes_json():
    value = {
        "effect": Effect.PURE, "days": (date(2026, 1, 2),), "set": frozenset({"b", "a"}), "endless": float("inf"),
        "none": None, "yes": True,
    }  # fmt: skip

    assert json.loads(json.dumps(plain(value), allow_nan=False)) == {
        "effect": "pure", "days": ["2026-01-02"], "set": ["a", "b"], "endless": "inf", "none": None, "yes": True,
    }  # fmt: skip


NAMES = ["api_key", "X-Api-Key", "token", "db_password", "clientSecret", "Authorization", "privateKey", "access-key",
         "passphrase", "db_pwd", "SENTRY_DSN"]  # fmt: skip


@pytest.mark.parametrize("key", NAMES)
def test_a_value_that_sounds_like_a_secret_is_a_fingerprint(key):
    shown = plain({key: "hunter2"})

    assert "hunter2" not in json.dumps(shown)
    assert shown == {key: fingerprint("hunter2")}
    assert shown != plain({key: "hunter3"})


def test_a_list_of_secrets_is_one_too():
    assert plain({"api_keys": ["hunter2", "hunter3"]}) == {"api_keys": fingerprint(["hunter2", "hunter3"])}
    assert plain({"tokens_env": ["ONE", "TWO"], "token_limits": [5, 6]}) == {
        "tokens_env": ["ONE", "TWO"], "token_limits": [5, 6],
    }  # fmt: skip


def test_a_table_of_secrets_is_one_too_and_one_of_names_or_numbers_is_shown():
    table = {"user": "ada", "pin": ["hunter2"]}
    shown = {"credentials": {"vault_env": "VAULT", "ttl": 5}, "token_limits": {"chat": 5}}

    assert plain({"credentials": table, "tokens": [table]}) == {
        "credentials": fingerprint(table), "tokens": fingerprint([table]),
    }  # fmt: skip
    assert plain(shown) == shown


def test_a_schema_is_shown_whatever_its_values_are_called():
    schema = {"properties": {"token": {"type": "string"}}}

    assert plain(OutputUse(schema=schema)) == {"schema": schema}
    assert plain({"json_schema": [schema]}) == {"json_schema": [schema]}


def test_the_name_of_a_variable_is_shown():
    assert plain({"token_env": "SHOP_TOKEN", "max_tokens": 5}) == {"token_env": "SHOP_TOKEN", "max_tokens": 5}


def texts(old: AgentVersion, new: AgentVersion) -> list[tuple[DiffKind, str]]:
    return [(line.kind, line.text) for line in difference(old, new)]


def test_instructions_come_first_line_by_line():
    old = version(AgentSpec(name="ada", model="m", instructions="Be kind.\nAsk first."))
    new = version(AgentSpec(name="ada", model="m", instructions="Be kind.\nAsk twice."))

    assert texts(old, new) == [
        (DiffKind.FILE, f"--- instructions {old.digest[:12]}"),
        (DiffKind.FILE, f"+++ instructions {new.digest[:12]}"),
        (DiffKind.PLACE, "@@ -1,2 +1,2 @@"),
        (DiffKind.SAME, " Be kind."),
        (DiffKind.REMOVED, "-Ask first."),
        (DiffKind.ADDED, "+Ask twice."),
    ]


def test_a_line_that_looks_like_a_heading_is_a_line():
    old = version(AgentSpec(name="ada", model="m", instructions="-- one"))
    new = version(AgentSpec(name="ada", model="m", instructions="++ two"))

    assert texts(old, new)[3:] == [(DiffKind.REMOVED, "--- one"), (DiffKind.ADDED, "+++ two")]


def test_the_rest_of_the_definition_follows():
    old, new = version(), version(AgentSpec(name="ada", model="openai:two", instructions="Be kind."))

    assert (DiffKind.REMOVED, '-    "model": "openai:one",') in texts(old, new)
    assert (DiffKind.ADDED, '+    "model": "openai:two",') in texts(old, new)


def test_a_version_does_not_differ_from_itself():
    assert difference(version(), version()) == ()


# An agent as it was in a version.

RICH = AgentSpec(
    name="ada", model="a:one", fallbacks=("b:two",), instructions="Be kind.", tools=("m:x", "m:y"), strategy="direct",
    limits=Limits(max_rounds=None, timeout=1.5, max_depth=2), params={"temperature": 0.5, "stop": ["x"]}, concurrency=3,
    model_timeout=math.inf, model_retries=0, stream=False, prompt_cache=False, tenant="t",
    tool_mode=ToolMode.SEQUENTIAL, agents=(SubAgent(agent="bob", timeout=2.0),), placement=Placement.SPREAD,
    placements={"x": Placement.HERE}, mixed_round=MixedRound.WAIT, on_unknown=OnUnknown.FAIL,
    while_waiting=WhileWaiting.HOLD, when_busy=WhenBusy.STEER, when_changed=WhenChanged.FOLLOW,
    plugins=(PluginUse(use="m:P", options={"api_key": "s3cret", "deep": {"n": [1]}}),),
    output=OutputUse(schema={"type": "object"}), plan=PlanSpec(model="c:three", out_of_scope=OutOfScope.REFUSE_BATCH),
    compaction=CompactionSpec(threshold=7), selectable_models=("d:four",),
)  # fmt: skip


def stored(agent: AgentSpec = RICH, **more: object) -> AgentVersion:
    """As it comes from the database."""
    return version_of("ada", json.loads(json.dumps({"format": 1, "agent": plain(agent), **more})))


def test_every_key_of_an_agent_is_restored():
    made_of_others = {"named_models", "digest", "pinned_tools"}
    plain_ones = AgentSpec(name="", model="")
    for field in fields(AgentSpec):
        assert field.name in made_of_others or getattr(RICH, field.name) != getattr(plain_ones, field.name), field.name

    version = stored(tools={"x": {}, "y": {}})
    again = restored(version, replace(ADA, plugins=RICH.plugins))

    assert again == RICH
    assert (again.named_models, again.digest, again.pinned_tools) == (RICH.named_models, version.digest, ("x", "y"))


def test_a_secret_has_its_value_of_today():
    today = replace(ADA, plugins=(PluginUse(use="m:P", options={"api_key": "rotated", "deep": {"n": [2]}}),))

    (plugin,) = restored(stored(), today).plugins

    assert plugin.options == {"api_key": "rotated", "deep": {"n": [1]}}


@pytest.mark.parametrize(
    "version",
    [stored(), stored(ADA, format=2), version_of("ada", {"agent": {**plain(ADA), "tool_mode": "dance"}})],
    ids=["a secret that today's file does not have", "another format", "a word that is not known"],
)
def test_a_version_that_cannot_be_restored_is_none(version):
    assert restored(version, ADA) is None


def test_a_key_of_a_newer_release_is_left_out():
    assert restored(version_of("ada", {"agent": {**plain(ADA), "mood": "good"}}), RICH) == ADA
