"""Alembic's entry: runs the versions on the connection that migrating.py hands over."""

from alembic import context

from chordage.orchestrator.store.schema import metadata

connection = context.config.attributes["connection"]
context.configure(
    connection=connection,
    target_metadata=metadata,
    render_as_batch=True,
    compare_type=True,
    transaction_per_migration=False,
)
with context.begin_transaction():
    context.run_migrations()
