"""How a key is written and read, and the caller that it makes."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from chordage.orchestrator.core import keys
from chordage.orchestrator.core.callers import Caller, KeyScope
from chordage.orchestrator.core.errors import InvalidMessage
from chordage.orchestrator.core.groups import Group
from chordage.orchestrator.core.keys import ApiKey, KeyState, KeyTerms, check_terms, within

NOW = datetime(2026, 1, 1, tzinfo=UTC)
ID = keys.id_from(bytes(range(keys.ID_LENGTH)))
SECRET = keys.secret_from(bytes(range(32)))
TEXT = keys.written(ID, SECRET)


def a_key(**fields: object) -> ApiKey:
    usual = {
        "id": ID, "hash": keys.hash_of(SECRET), "name": "shop", "tenant": None, "scopes": frozenset({KeyScope.READ}),
        "agents": None, "groups": None, "created_by": "cli", "created_at": NOW, "expires_at": None,
        "last_used_at": None, "revoked_at": None,
    }  # fmt: skip
    return ApiKey(**{**usual, **fields})


@given(st.binary(min_size=keys.ID_LENGTH, max_size=keys.ID_LENGTH), st.binary(min_size=32, max_size=32))
def test_a_key_is_read_as_it_was_written(random_id, random_secret):
    key_id, secret = keys.id_from(random_id), keys.secret_from(random_secret)

    parts = keys.parse(keys.written(key_id, secret))

    assert parts is not None
    assert (parts.id, parts.secret) == (key_id, secret)


def test_all_keys_have_one_form_that_a_scanner_can_look_for():
    for random in (bytes(32), b"\xff" * 32):
        assert len(keys.written(ID, keys.secret_from(random))) == len(TEXT) == 66
    assert TEXT.startswith(f"ck_{ID}_")


def test_different_random_bytes_make_different_secrets():
    assert keys.secret_from(bytes(31) + b"\x01") != keys.secret_from(bytes(32))
    assert keys.secret_from(b"\x01" + bytes(31)) != keys.secret_from(bytes(32))


@pytest.mark.parametrize("place", range(len(TEXT)))
def test_a_typo_anywhere_is_refused_before_the_database_is_asked(place):
    other = "y" if TEXT[place] != "y" else "z"

    assert keys.parse(TEXT[:place] + other + TEXT[place + 1 :]) is None
    assert keys.parse(TEXT[:place] + TEXT[place + 1 :]) is None


@pytest.mark.parametrize("text", ["", "ck_", "Bearer x", TEXT + "a", TEXT + "\n", " " + TEXT, TEXT.upper(), "ck_é_ü_ß"])
def test_what_is_no_key_is_refused(text):
    assert keys.parse(text) is None


def test_only_the_hash_of_the_secret_is_kept_and_the_secret_is_never_printed():
    key = a_key()

    assert key.fits(SECRET)
    assert not key.fits(keys.secret_from(bytes(32)))
    assert SECRET not in repr(key)
    assert key.hash not in repr(key)
    assert SECRET not in repr(keys.parse(TEXT))


def test_state_of_a_key():
    assert a_key().state(NOW) is KeyState.VALID
    assert a_key(expires_at=NOW + timedelta(seconds=1)).state(NOW) is KeyState.VALID
    assert a_key(expires_at=NOW).state(NOW) is KeyState.EXPIRED
    assert a_key(expires_at=NOW, revoked_at=NOW).state(NOW) is KeyState.REVOKED


@pytest.mark.parametrize(
    ("tenant", "scopes", "reach", "space"),
    [
        (None, {KeyScope.READ, KeyScope.DECIDE}, "api", "api"),
        (None, {KeyScope.OPERATE}, None, "api"),
        (None, {KeyScope.ADMIN}, None, "api"),
        ("acme", set(KeyScope), "api@acme", "api@acme"),
    ],
)
def test_reach_of_a_key(tenant, scopes, reach, space):
    caller = a_key(tenant=tenant, scopes=frozenset(scopes)).caller()

    assert (caller.reach, caller.space, caller.id) == (reach, space, ID)


FINE = KeyTerms(name="shop", scopes=frozenset({KeyScope.READ}))


@pytest.mark.parametrize(
    ("fields", "field"),
    [
        ({"name": " "}, "name"),
        ({"name": "x" * 101}, "name"),
        ({"name": "a\nb"}, "name"),
        ({"name": "a\x00b"}, "name"),
        ({"scopes": frozenset()}, "scopes"),
        ({"tenant": ""}, "tenant"),
        ({"tenant": "a:b"}, "tenant"),  # `api@a:b:1` could be a thread `b:1` of the tenant `a`
        ({"tenant": "a@b"}, "tenant"),
        ({"tenant": "acme\n"}, "tenant"),
        ({"tenant": "x" * 65}, "tenant"),
        ({"expires_at": NOW}, "expires_at"),
    ],
)
def test_terms_that_make_no_key(fields, field):
    terms = {"name": FINE.name, "scopes": FINE.scopes, **fields}

    check_terms(FINE, NOW)
    with pytest.raises(InvalidMessage) as refused:
        check_terms(KeyTerms(**terms), NOW)

    assert refused.value.field == field


def test_a_key_makes_no_wider_key():
    maker = Caller(
        id="m", tenant="acme", agents=frozenset({"ada"}), groups=frozenset({Group.CHAT}), scopes=frozenset(KeyScope)
    )
    own = {"agents": maker.agents, "groups": maker.groups}

    assert within(KeyTerms(name="n", scopes=FINE.scopes, **own), maker).tenant == "acme"
    for field, value in {
        "tenant": "other",
        "agents": frozenset({"ada", "bob"}),
        "groups": frozenset(Group),
    }.items():
        with pytest.raises(InvalidMessage) as refused:
            within(KeyTerms(name="n", scopes=FINE.scopes, **{**own, field: value}), maker)
        assert refused.value.field == field
    for field in ("agents", "groups"):
        with pytest.raises(InvalidMessage):
            within(KeyTerms(name="n", scopes=FINE.scopes, **{**own, field: None}), maker)


def test_a_key_without_limits_makes_any_key():
    terms = KeyTerms(name="n", scopes=FINE.scopes, tenant="acme", agents=frozenset({"ada"}))

    assert within(terms, Caller(id="m")) == terms
