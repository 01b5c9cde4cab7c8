"""Live tests run on local processes: these fixtures replace pytest-celery's containers."""

from __future__ import annotations

from chordage.testing.nodes import (  # noqa: F401  fixtures
    celery_backend_cluster,
    celery_broker_cluster,
    celery_setup_app,
    celery_worker_cluster,
    chordage_fleet,
    chordage_reaper,
    chordage_settings,
    chordage_state,
)
