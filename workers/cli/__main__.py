"""`python -m chordage.workers.cli` is `chordage`: how the fleet starts its members."""

from __future__ import annotations

from chordage.workers.cli import main

main(prog_name="chordage")
