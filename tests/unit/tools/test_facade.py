"""`import chordage` is what every user's module does: it is light, and has all the names."""

from __future__ import annotations

import subprocess
import sys
from importlib.metadata import version

import pytest

import chordage


def said_by(program):
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=120, check=True)
    return done.stdout.split()


def test_every_promised_name_is_there():
    for name in chordage.__all__:
        assert getattr(chordage, name) is not None
    assert issubclass(chordage.RoomError, chordage.UserError)


def test_the_version_is_that_of_the_package():
    assert chordage.__version__ == version("chordage")


def test_other_names_are_missing_as_in_any_module():
    with pytest.raises(AttributeError, match="module 'chordage' has no attribute 'Chord'"):
        _ = chordage.Chord


def test_importing_it_imports_nothing_heavy():
    heavy = ["pydantic", "celery", "kombu", "sqlalchemy", "httpx", "redis", "fastapi", "structlog"]
    imported = f"print(*[name for name in {heavy} if name in sys.modules])"
    assert said_by(f"import chordage, chordage.celery, sys; {imported}") == []


def test_a_client_over_http_needs_nothing_of_the_engine():
    engine = ["celery", "kombu", "sqlalchemy", "redis", "fastapi", "structlog", "chordage.orchestrator.store"]
    imported = f"print(*[name for name in {engine} if name in sys.modules])"
    assert said_by(f"import chordage, sys; chordage.Client; chordage.AsyncClient; {imported}") == []
