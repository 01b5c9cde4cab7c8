"""Worlds: the engine with a schedule of its own, on both databases."""

from __future__ import annotations

import logging
from collections.abc import Iterator

import pytest
import structlog

from chordage.orchestrator.store.database import Store
from support.world import World


@pytest.fixture(autouse=True)
def quiet() -> Iterator[None]:
    """Thousands of wake-ups are not worth a line each."""
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.WARNING))
    yield
    structlog.reset_defaults()


@pytest.fixture
def world(database_url: str) -> Iterator[World]:
    made = World(Store(database_url))
    yield made
    made.close()
