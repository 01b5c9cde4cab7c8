"""Alembic's entry: runs the versions on the connection that schema_version.py hands over."""

from alembic import context

from chordage.orchestrator.store.schema import metadata
from chordage.orchestrator.store.schema_version import VERSION_TABLE

connection = context.config.attributes["connection"]
context.configure(
    connection=connection,
    target_metadata=metadata,
    version_table=VERSION_TABLE,
    render_as_batch=True,
    compare_type=True,
    transaction_per_migration=False,
)
with context.begin_transaction():
    context.run_migrations()
