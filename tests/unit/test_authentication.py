"""Who a request comes from, by its headers alone: the keys are in memory here."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime, timedelta

import pytest

from chordage.orchestrator.api import authentication as module
from chordage.orchestrator.api.authentication import Authentication, KeyRows
from chordage.orchestrator.api.limits import RequestLimits, StreamSlots
from chordage.orchestrator.core import keys
from chordage.orchestrator.core.callers import LOCAL, Caller, KeyScope
from chordage.orchestrator.core.errors import TooManyRequests, Unauthenticated
from chordage.orchestrator.core.keys import ApiKey
from chordage.orchestrator.core.rates import Rate
from chordage.orchestrator.gateways.rate_limits import MemoryBuckets

NOW = datetime(2026, 1, 1, tzinfo=UTC)
HERE = {"host": "127.0.0.1:8630"}


class Rows:
    """The rows of keys, and how often they were asked for."""

    def __init__(self) -> None:
        self.kept: dict[str, ApiKey] = {}
        self.looked_up: list[str] = []
        self.used: list[str] = []
        self.clock = 0.0
        self.now = NOW

    def add(self, number: int = 0, **fields: object) -> str:
        """Its text."""
        key_id, secret = keys.id_from(bytes([number] * keys.ID_LENGTH)), keys.secret_from(bytes([number] * 32))
        usual = {
            "tenant": None, "scopes": frozenset(KeyScope), "agents": None, "groups": None, "expires_at": None,
            "revoked_at": None, "last_used_at": None,
        }  # fmt: skip
        self.kept[key_id] = ApiKey(
            id=key_id, hash=keys.hash_of(secret), name="n", created_by="cli", created_at=NOW, **{**usual, **fields}
        )
        return keys.written(key_id, secret)

    def find(self, key_id: str) -> ApiKey | None:
        self.looked_up.append(key_id)
        return self.kept.get(key_id)

    def authentication(self, address: str = "10.0.0.5") -> Authentication:
        rows = KeyRows(find=self.find, record_use=lambda key: self.used.append(key.id))
        return Authentication(rows, address=address, now=lambda: self.now, clock=lambda: self.clock)


@pytest.fixture
def rows() -> Rows:
    return Rows()


FORMS: list[Callable[[str], dict[str, str]]] = [
    lambda text: {"authorization": f"Bearer {text}"},
    lambda text: {"authorization": f"bearer   {text} "},
    lambda text: {"x-api-key": text},
    lambda text: {"x-api-key": f" {text}", "authorization": "Basic YTpi"},
]


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("address", ["10.0.0.5", "127.0.0.1"])
def test_a_key_is_taken_in_each_form(rows, form, address):
    text = rows.add(tenant="acme")

    caller = rows.authentication(address)({**HERE, **form(text)})

    assert (caller.id, caller.tenant) == (keys.parse(text).id, "acme")


BAD = {
    "none": {},
    "empty": {"authorization": ""},
    "no word": {"authorization": "Bearer"},
    "another scheme": {"authorization": "Basic YTpi"},
    "nonsense": {"authorization": "Bearer nonsense"},
    "not ours": {"x-api-key": "sk-123"},
}


@pytest.mark.parametrize("headers", BAD.values(), ids=BAD)
def test_outside_loopback_nothing_passes_without_a_key(rows, headers):
    with pytest.raises(Unauthenticated):
        rows.authentication()({**HERE, **headers})
    assert rows.looked_up == []


@pytest.mark.parametrize("headers", BAD.values(), ids=BAD)
def test_on_loopback_a_program_of_this_machine_needs_no_key(rows, headers):
    assert rows.authentication("127.0.0.1")({**HERE, **headers}) is LOCAL


@pytest.mark.parametrize(
    "headers",
    [
        {"host": "agents.example.org"},
        {"host": "10.0.0.5:8630"},
        {},
        {"host": "[::1"},
        {**HERE, "x-forwarded-for": "203.0.113.7"},
        {**HERE, "x-forwarded-proto": "https"},
        {**HERE, "via": "1.1 proxy"},
        {**HERE, "cf-connecting-ip": "203.0.113.7"},
        {**HERE, "sec-fetch-site": "cross-site"},
        {**HERE, "forwarded": "for=203.0.113.7"},
        {**HERE, "x-real-ip": "203.0.113.7"},
        {**HERE, "origin": "https://agents.example.org"},
        {**HERE, "origin": "null"},
    ],
    ids=str,
)
def test_on_loopback_what_came_from_elsewhere_needs_a_key(rows, headers):
    authentication = rows.authentication("127.0.0.1")
    with pytest.raises(Unauthenticated):
        authentication(headers)
    assert authentication({**headers, "x-api-key": rows.add()}).id != LOCAL.id


def test_on_loopback_a_key_of_ours_that_is_wrong_is_refused(rows):
    text = rows.add()
    with pytest.raises(Unauthenticated):
        rows.authentication("127.0.0.1")({**HERE, "x-api-key": f"{text[:-1]}0"})


def test_a_typo_costs_no_look_up_and_a_wrong_secret_is_refused(rows):
    text = rows.add()
    wrong = keys.written(keys.parse(text).id, keys.secret_from(b"x" * 32))

    for sent in (text[:-2] + "00", wrong, keys.written("b" * keys.ID_LENGTH, keys.secret_from(bytes(32)))):
        with pytest.raises(Unauthenticated, match="not valid"):
            rows.authentication()({"x-api-key": sent})

    assert len(rows.looked_up) == 2
    assert rows.used == []


@pytest.mark.parametrize("fields", [{"revoked_at": NOW}, {"expires_at": NOW}])
def test_a_key_that_is_over_is_refused(rows, fields):
    text = rows.add(**fields)
    with pytest.raises(Unauthenticated):
        rows.authentication()({"x-api-key": text})


def test_a_good_look_up_is_kept_for_five_seconds_and_a_revoked_key_works_no_longer(rows):
    text = rows.add()
    authentication = rows.authentication()
    for _ in range(3):
        authentication({"x-api-key": text})
    assert len(rows.looked_up) == 1

    rows.add(revoked_at=NOW)
    rows.clock = 4.9
    authentication({"x-api-key": text})
    rows.clock = 5.0
    with pytest.raises(Unauthenticated):
        authentication({"x-api-key": text})


def test_a_key_expires_at_once_also_where_it_is_kept(rows):
    text = rows.add(expires_at=NOW + timedelta(seconds=1))
    authentication = rows.authentication()
    authentication({"x-api-key": text})

    rows.now += timedelta(seconds=1)
    with pytest.raises(Unauthenticated):
        authentication({"x-api-key": text})


def test_a_bad_look_up_is_not_kept(rows):
    authentication = rows.authentication()
    text = rows.add()
    kept = rows.kept.copy()
    rows.kept.clear()
    with pytest.raises(Unauthenticated):
        authentication({"x-api-key": text})

    rows.kept = kept
    assert authentication({"x-api-key": text})


def test_a_process_keeps_a_bounded_number_of_keys(rows, monkeypatch):
    monkeypatch.setattr(module, "KEPT", 3)
    authentication = rows.authentication()
    for number in range(9):
        authentication({"x-api-key": rows.add(number)})

    assert len(authentication._believed) == 3


def test_the_use_of_a_key_is_recorded_once_a_minute(rows):
    text = rows.add()
    authentication = rows.authentication()
    for seconds in range(0, 125, 5):
        rows.clock, rows.now = float(seconds), NOW + timedelta(seconds=seconds)
        rows.kept = {key_id: _used(key, rows.now) for key_id, key in rows.kept.items()} if rows.used else rows.kept
        authentication({"x-api-key": text})

    assert len(rows.used) == 1, "another process has recorded its use since"


def _used(key: ApiKey, now: datetime) -> ApiKey:
    from dataclasses import replace

    return replace(key, last_used_at=now)


def test_the_use_of_a_key_is_recorded_again_after_a_minute(rows):
    text = rows.add()
    authentication = rows.authentication()
    for seconds in (0, 1, 59, 60, 61):
        rows.now = NOW + timedelta(seconds=seconds)
        authentication({"x-api-key": text})

    assert len(rows.used) == 2


# Limits.

ONE = Rate(per_second=1, burst=1)
KEY = Caller(id="k1", tenant="acme")
SAME_TENANT = Caller(id="k2", tenant="acme")


def limits(**rates: Rate | None) -> RequestLimits:
    return RequestLimits(MemoryBuckets(lambda: 0.0).take, **{"of_key": None, "of_tenant": None, **rates})


def test_a_key_that_has_used_up_its_rate_is_told_when_to_come_back():
    of_key = limits(of_key=ONE)
    of_key.take(KEY)
    with pytest.raises(TooManyRequests, match="the key k1 may send 1 requests a second") as refused:
        of_key.take(KEY)

    assert refused.value.retry_after == 1
    of_key.take(SAME_TENANT)


def test_keys_of_a_tenant_share_its_rate():
    of_tenant = limits(of_tenant=ONE)
    of_tenant.take(KEY)
    with pytest.raises(TooManyRequests, match="the tenant 'acme'"):
        of_tenant.take(SAME_TENANT)

    of_tenant.take(Caller(id="k3", tenant="other"))
    of_tenant.take(Caller(id="k4"))
    of_tenant.take(Caller(id="k4"))


def test_programs_of_this_machine_are_not_limited():
    none = limits(of_key=ONE)
    for _ in range(3):
        assert none.take(LOCAL) == []


def test_a_key_has_a_bounded_number_of_streams_open():
    slots = StreamSlots(2)
    slots.enter(KEY)
    slots.enter(KEY)
    with pytest.raises(TooManyRequests, match="2 streams"):
        slots.enter(KEY)
    slots.enter(SAME_TENANT)

    slots.leave(KEY)
    slots.enter(KEY)
    for _ in range(3):
        slots.enter(LOCAL)


def test_a_page_of_this_machine_needs_no_key(rows):
    headers = {**HERE, "origin": "http://localhost:3000", "sec-fetch-site": "cross-site"}
    assert rows.authentication("127.0.0.1")(headers) is LOCAL


def test_a_key_is_valid_until_it_is_revoked(rows):
    text = rows.add()
    authentication = rows.authentication()
    caller = authentication({**HERE, "x-api-key": text})
    assert authentication.is_valid(caller)
    assert authentication.is_valid(LOCAL)

    rows.kept.clear()
    rows.clock += 6
    assert not authentication.is_valid(caller)
    assert authentication.is_valid(LOCAL)
