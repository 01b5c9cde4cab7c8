"""An answer on the terminal as it comes."""

from __future__ import annotations

from chordage.workers.cli.streaming import Streamed


def test_progress_of_tools_at_work_side_by_side_is_told_with_their_names(capsys):
    streamed = Streamed(shown=True)
    for call, tool in (("c1", "weather"), ("c2", "trains")):
        streamed.emit("r", "tool.started", call=call, tool=tool)
    streamed.emit("r", "tool.progress", call="c1", text="20%")
    streamed.emit("r", "tool.progress", call="c2", text="0%")

    assert capsys.readouterr().err.split() == ["·", "weather", "·", "trains", "weather", "20%", "trains", "0%"]
