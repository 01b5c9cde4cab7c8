"""What docs/how-to/webhooks.md shows is what the room takes."""

from __future__ import annotations

import re

from chordage.orchestrator.core import webhooks
from chordage.orchestrator.gateways.webhooks import file
from support.repository import ROOT

ENV = {"GITHUB_HOOK_SECRET": "s", "BILLING_SECRET": "whsec_c2Vj", "BILLING_SECRET_OLD": "whsec_b2xk",
       "TICKETS_SECRET": "s", "TICKETS_TOKEN": "t"}  # fmt: skip
TEXT = (ROOT / "docs" / "how-to" / "webhooks.md").read_text()


def test_the_bindings_of_the_docs_have_no_fault_and_take_the_bodies_of_the_docs(folder):
    folder.write("hooks.toml", "\n".join(re.findall(r"```toml\n(.*?)```", TEXT, re.DOTALL)))
    folder.write("tickets.py", re.search(r"```python\n(.*?)```", TEXT, re.DOTALL)[1])

    found = file.read(folder.path, ENV)

    assert found.faults == []
    named = {binding.name: binding.shape for binding in found.bindings}
    billing, github = (webhooks.read(body.encode()) for body in re.findall(r"^body='(.*)'$", TEXT, re.MULTILINE))
    assert webhooks.text_of(named["billing"], billing) == "hello"
    assert webhooks.text_of(named["github"], github).startswith("ada pushed to ada/engine, refs/heads/main.")
    assert "tickets" in named
