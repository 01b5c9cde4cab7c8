"""Every form of a Redis address that people write, as Celery and redis-py want it; all else is refused in one line."""

from __future__ import annotations

import pytest
from redis import Redis, SSLConnection, UnixDomainSocketConnection
from redis.sentinel import SentinelConnectionPool

from chordage.config.celery_settings import celery_settings
from chordage.config.redis_url import RedisKind, parse
from chordage.config.settings import SettingsFault, load
from chordage.workers.bootstrap import client_of
from support.plain_room import forget_settings

SENTINELS = "sentinel://:p%40w@a:26379/2;sentinel://b"
FORMS = {
    "redis://h": (RedisKind.TCP, "redis://h:6379/0", "redis://h:6379/0"),
    "redis://me:p%2Fw@h:1/3": (RedisKind.TCP, "redis://me:p%2Fw@h:1/3", "redis://h:1/3"),
    "redis://:pw@[::1]:7/1": (RedisKind.TCP, "redis://:pw@[::1]:7/1", "redis://[::1]:7/1"),
    "redis://h?password=pw&db=4": (RedisKind.TCP, "redis://:pw@h:6379/4", "redis://h:6379/4"),
    "rediss://h:2": (RedisKind.TLS, "rediss://h:2/0", "rediss://h:2/0"),
    "unix:///run/r.sock?db=2": (RedisKind.SOCKET, "redis+socket:///run/r.sock?virtual_host=2", "unix:///run/r.sock?db=2"),
    "unix://:pw@/run/r.sock": (RedisKind.SOCKET, "redis+socket://:pw@/run/r.sock?virtual_host=0", "unix:///run/r.sock?db=0"),
    "redis+socket:///run/r.sock?virtual_host=1": (
        RedisKind.SOCKET, "redis+socket:///run/r.sock?virtual_host=1", "unix:///run/r.sock?db=1",
    ),
    SENTINELS: (
        RedisKind.SENTINEL, "sentinel://:p%40w@a:26379/2;sentinel://:p%40w@b:26379/2",
        "sentinel://a:26379,b:26379/2 (mymaster)",
    ),
}  # fmt: skip


@pytest.mark.parametrize("url", FORMS)
def test_each_form_is_understood_and_shown_without_its_password(url) -> None:
    address = parse(url, master="mymaster")

    assert (address.kind, address.broker_url, str(address)) == FORMS[url]
    assert "p%40w" not in repr(address)


def test_tls_requires_a_certificate_by_default() -> None:
    assert parse("rediss://h").tls == {"ssl_cert_reqs": "required", "ssl_check_hostname": True}
    assert parse("rediss://h?ssl_cert_reqs=CERT_NONE").tls == {"ssl_cert_reqs": "none", "ssl_check_hostname": False}
    assert parse("rediss://h?ssl_ca_certs=/ca.pem&ssl_check_hostname=false").tls == {
        "ssl_cert_reqs": "required", "ssl_check_hostname": False, "ssl_ca_certs": "/ca.pem",
    }  # fmt: skip


WRONG = {
    "amqp://guest:secret@h//": "has the scheme amqp://, and only Redis will do: locks, live news and the join of",
    "sqs://secret@": "has the scheme sqs://",
    "localhost:6379": "is no URL: give redis://",
    "redis://:se#cret@h:1": "is no URL",
    "redis://": "names no host",
    "redis://a;redis://b": "is not the address of one Redis",
    "redis://a;sentinel://b": "is not the address of one Redis",
    "redis://h/secret": "names the database 'secret'",
    "redis://h?colour=secret": "has 'colour' behind the question mark: there may be db, password, virtual_host",
    "redis://h?ssl_cert_reqs=none": "has 'ssl_cert_reqs' behind the question mark",
    "rediss://h?ssl_cert_reqs=perhaps": "has ssl_cert_reqs=perhaps: give one of required, optional, none",
    "rediss://h?ssl_check_hostname=x": "has ssl_check_hostname=x: give true or false",
    "unix://run/r.sock": "a socket has an absolute path",
    "sentinel://a": "names sentinels, and not the server they watch: set redis_master too, such as mymaster",
    "": "is not the address of one Redis",
}


@pytest.mark.parametrize("url", WRONG)
def test_what_is_no_redis_is_refused_with_what_there_may_be(url, monkeypatch, tmp_path) -> None:
    monkeypatch.chdir(tmp_path)
    forget_settings(monkeypatch)
    monkeypatch.setenv("CHORDAGE_REDIS_URL", url)
    with pytest.raises(SettingsFault) as refused:
        load()

    assert str(refused.value).startswith("setting redis_url (CHORDAGE_REDIS_URL or chordage.toml): ")
    assert WRONG[url] in str(refused.value)
    assert "secret" not in str(refused.value).replace("'secret'", "")
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize(
    ("url", "kind"),
    [("redis://h", object), ("rediss://h", SSLConnection), ("unix:///r.sock", UnixDomainSocketConnection)],
)
def test_our_clients_connect_as_the_address_demands(url, kind) -> None:
    with client_of(parse(url), socket_timeout=1) as client:
        assert isinstance(client, Redis)
        assert issubclass(client.connection_pool.connection_class, kind)
        client.connection_pool.connection_class(**client.connection_pool.connection_kwargs)  # takes all it is given


def test_our_clients_query_the_sentinels_with_their_own_password() -> None:
    with client_of(parse(SENTINELS, master="mymaster", sentinel_password="other")) as client:
        pool = client.connection_pool
        assert isinstance(pool, SentinelConnectionPool)
        assert (pool.service_name, pool.connection_kwargs["db"], pool.connection_kwargs["password"]) == (
            "mymaster", 2, "p@w",
        )  # fmt: skip
        (asked, _) = pool.sentinel_manager.sentinels
        assert asked.connection_pool.connection_kwargs["password"] == "other"


def test_celery_gets_the_same(tmp_path) -> None:
    settings = load(
        room=tmp_path, redis_url=SENTINELS, redis_master="mymaster", redis_sentinel_password="other", prefix="shop"
    )
    told = celery_settings(settings, ())

    for name in ("broker_transport_options", "result_backend_transport_options"):
        assert told[name]["master_name"] == "mymaster"
        assert told[name]["sentinel_kwargs"] == {"password": "other"}
        assert told[name]["global_keyprefix"] == "shop:celery:"
    assert told["broker_url"] == told["result_backend"] == FORMS[SENTINELS][1]


def test_a_redis_that_is_shared_is_safe_by_default(tmp_path) -> None:
    assert load(room=tmp_path).broker_prefix == "chordage:celery:"
    assert load(room=tmp_path, prefix="shop").broker_prefix == "shop:celery:"
    assert load(room=tmp_path, broker_prefix="").broker_prefix == ""
