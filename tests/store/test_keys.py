"""Keys, the record of what was decided and changed, and one-time links: on both databases."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from datetime import UTC, datetime, timedelta

import pytest

from chordage.orchestrator import stages, views
from chordage.orchestrator.core.audit import Actor, Audited
from chordage.orchestrator.core.callers import KeyScope
from chordage.orchestrator.core.errors import InvalidMessage, NotFound
from chordage.orchestrator.core.groups import Group
from chordage.orchestrator.core.keys import KeyState, KeyTerms, parse
from chordage.orchestrator.store import keys

NOW = datetime(2026, 1, 1, tzinfo=UTC)
BY = Actor(id="cli", address="10.0.0.1")
TERMS = KeyTerms(name="shop", scopes=frozenset({KeyScope.SUBMIT, KeyScope.READ}))


def make(store, now=NOW, **fields):
    return stages.create_key(store, replace(TERMS, **fields), BY, now)


def test_a_key_is_found_by_its_id_as_it_was_made(store):
    expires = NOW + timedelta(days=90)
    new = make(store, tenant="acme", agents=frozenset({"ada"}), groups=frozenset({Group.CHAT}), expires_at=expires)

    parts = parse(new.text)
    kept = stages.find_key(store, parts.id)

    assert kept == new.key
    assert kept.fits(parts.secret)
    assert parts.secret not in str(store_rows(store))
    assert (kept.created_by, kept.created_at, kept.state(NOW)) == ("cli", NOW, KeyState.VALID)
    assert stages.find_key(store, "nowhere") is None


def store_rows(store):
    with store.read() as tx:
        return [tuple(row) for row in tx.exec_driver_sql("SELECT * FROM caller_keys")]


def test_terms_that_break_a_rule_make_no_key(store):
    with pytest.raises(InvalidMessage):
        make(store, tenant="a:b")
    assert store_rows(store) == []
    assert views.audit_page(store).data == []


def test_revoking_is_done_once_and_recorded_once(store):
    new = make(store)

    first = stages.revoke_key(store, new.key.id, BY, NOW + timedelta(minutes=1))
    again = stages.revoke_key(store, new.key.id, BY, NOW + timedelta(minutes=2))

    assert first.revoked_at == again.revoked_at == NOW + timedelta(minutes=1)
    assert [(one.action, one.about, one.actor, one.address) for one in views.audit_page(store).data] == [
        (Audited.KEY_REVOKED, new.key.id, "cli", "10.0.0.1"),
        (Audited.KEY_CREATED, new.key.id, "cli", "10.0.0.1"),
    ]


def test_a_key_of_another_tenant_is_not_there(store):
    new = make(store, tenant="acme")
    for tenant in ("other",):
        with pytest.raises(NotFound):
            stages.revoke_key(store, new.key.id, BY, NOW, tenant=tenant)
        assert views.keys(store, now=NOW, tenant=tenant) == []
        with pytest.raises(NotFound):
            views.keys(store, now=NOW, tenant=tenant, after=new.key.id)
    with pytest.raises(NotFound, match="chordage keys list"):
        stages.revoke_key(store, "nowhere", BY, NOW)

    assert stages.revoke_key(store, new.key.id, BY, NOW, tenant="acme").revoked_at == NOW


@pytest.mark.parametrize("tenant", [None, "acme"])
def test_pages_of_keys_leave_none_out_and_show_none_twice(store, tenant):
    """Several were made at the same moment."""
    made = [make(store, NOW + timedelta(seconds=number // 3), tenant="acme").key.id for number in range(7)]
    if tenant is not None:
        make(store, tenant="other")

    pages, after = [], None
    while page := views.keys(store, now=NOW, limit=2, after=after, tenant=tenant):
        pages += page
        after = page[-1].id

    assert sorted(one.id for one in pages) == sorted(made)
    assert [one.created_at for one in pages] == sorted((one.created_at for one in pages), reverse=True)


def test_whether_there_is_a_valid_key(store):
    assert not stages.has_valid_key(store, NOW)
    make(store, expires_at=NOW + timedelta(hours=1))
    assert stages.has_valid_key(store, NOW)
    assert not stages.has_valid_key(store, NOW + timedelta(hours=1))

    new = make(store)
    assert stages.has_valid_key(store, NOW + timedelta(hours=1))
    stages.revoke_key(store, new.key.id, BY, NOW)
    assert not stages.has_valid_key(store, NOW + timedelta(hours=1))


def test_the_use_of_a_key_is_written_once_a_minute_whoever_writes_it(store):
    key = make(store).key

    written = []
    for seconds in (0, 30, 59, 60, 61):
        with store.write() as tx:
            written.append(keys.record_use(tx, key.id, NOW + timedelta(seconds=seconds)))

    assert written == [True, False, False, True, False]
    assert stages.find_key(store, key.id).last_used_at == NOW + timedelta(seconds=60)


def test_the_record_is_read_in_pages(store):
    made = [make(store).key.id for _ in range(5)]

    first = views.audit_page(store, limit=3).data
    second = views.audit_page(store, limit=3, before=(first[-1].at, first[-1].id)).data

    assert [one.about for one in (*first, *second)] == made[::-1]
    assert first[0].detail == {"name": "shop", "tenant": None, "scopes": ["read", "submit"], "act_as": False}


def test_an_address_that_is_too_long_is_cut(store):
    stages.create_key(store, TERMS, Actor(id="k", address="x" * 500), NOW)

    assert views.audit_page(store).data[0].address == "x" * 100


def test_a_link_lets_one_in_within_ten_minutes(store):
    token = stages.make_link(store, NOW)
    late = stages.make_link(store, NOW)

    assert not stages.use_link(store, "guessed", NOW)
    assert stages.use_link(store, token, NOW + timedelta(minutes=9))
    assert not stages.use_link(store, token, NOW + timedelta(minutes=9))
    assert not stages.use_link(store, late, NOW + timedelta(minutes=10))


def test_of_many_who_open_a_link_at_once_one_gets_in(store):
    token = stages.make_link(store, NOW)
    with ThreadPoolExecutor(8) as pool:
        results = list(pool.map(lambda _: stages.use_link(store, token, NOW), range(8)))

    assert sorted(results) == [False] * 7 + [True]


def test_links_that_nobody_used_are_deleted_with_the_next(store):
    stages.make_link(store, NOW)
    stages.make_link(store, NOW + timedelta(hours=1))

    with store.read() as tx:
        assert len(tx.exec_driver_sql("SELECT hash FROM login_links").all()) == 1


def test_processes_agree_on_the_secret_of_sessions(store):
    with ThreadPoolExecutor(8) as pool:
        secrets = set(pool.map(lambda _: stages.session_secret(store), range(8)))

    assert len(secrets) == 1
    assert len(secrets.pop()) == 32
