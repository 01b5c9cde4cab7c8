"""Which server program is taken, and what is said when there is none that will do."""

from __future__ import annotations

import pytest

from chordage.orchestrator.core.errors import ConfigError
from chordage.workers.fleet import valkey


def put_program(folder, name, says):
    folder.mkdir(exist_ok=True)
    program = folder / name
    program.write_text(f"#!/bin/sh\necho '{says}'\n")
    program.chmod(0o755)
    return program


def test_bundled_program_comes_before_path():
    bundled = valkey.bundled()

    assert bundled is not None
    assert valkey.find_program() == bundled
    assert valkey.version_of(bundled) >= valkey.OLDEST


def test_nothing_is_bundled_when_the_wheel_is_not_installed():
    assert valkey.bundled("no-such-distribution") is None


@pytest.mark.parametrize(
    ("name", "says", "version"),
    [
        ("redis-server", "Redis server v=7.0.15 sha=00000000:0 malloc=jemalloc-5.3.0 bits=64", (7, 0, 15)),
        ("valkey-server", "Valkey server v=8.1.3 sha=00000000:1 malloc=libc bits=64", (8, 1, 3)),
    ],
)
def test_new_enough_program_on_path_is_taken(tmp_path, name, says, version):
    program = put_program(tmp_path, name, says)

    assert valkey.on_path(str(tmp_path)) == program
    assert valkey.version_of(program) == version


def test_old_program_is_passed_over_for_a_newer_one(tmp_path):
    put_program(tmp_path / "a", "valkey-server", "Valkey server v=6.9")
    newer = put_program(tmp_path / "b", "redis-server", "Redis server v=7.2.0")

    assert valkey.on_path(f"{tmp_path / 'a'}:{tmp_path / 'b'}") == newer


def test_program_that_is_too_old_is_named_with_what_to_do(tmp_path):
    program = put_program(tmp_path, "redis-server", "Redis server v=6.2.14 sha=0")

    with pytest.raises(ConfigError) as refused:
        valkey.on_path(str(tmp_path))

    assert str(refused.value) == (
        f"Valkey or Redis 7.0 or newer is needed, found only {program} (6.2.14): "
        "pip install 'chordage[embedded]' brings one along"
    )


def test_program_without_a_readable_version_is_not_trusted(tmp_path):
    put_program(tmp_path, "redis-server", "hello")

    with pytest.raises(ConfigError, match="version unknown"):
        valkey.on_path(str(tmp_path))


def test_missing_program_is_reported_in_one_line(tmp_path):
    with pytest.raises(ConfigError, match=r"no Valkey or Redis.*pip install 'chordage\[embedded\]'"):
        valkey.on_path(str(tmp_path))


def test_program_that_cannot_be_run_has_no_version(tmp_path):
    broken = tmp_path / "redis-server"
    broken.write_bytes(b"\x00")
    broken.chmod(0o755)

    assert valkey.version_of(broken) == ()
