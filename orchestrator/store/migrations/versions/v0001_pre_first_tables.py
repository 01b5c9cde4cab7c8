"""The first tables: whatever schema.py declares.

Until the first release this version is made from the schema itself, so that nothing has to be written twice; the
checksum in `chordage_version` refuses a database that an earlier state of it has made. The first release writes this
file out as operations, because from then on schema.py describes the newest version and no longer this one.
"""

from alembic import op

from chordage.orchestrator.core.groups import Group
from chordage.orchestrator.store.schema import groups, metadata

revision = "0001"
down_revision = None
branch_labels = None
depends_on = None


def upgrade() -> None:
    metadata.create_all(op.get_bind(), checkfirst=False)
    op.bulk_insert(groups, [{"name": group.value} for group in Group])
