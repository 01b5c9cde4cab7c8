"""An answer on the terminal as it comes."""

from __future__ import annotations

from chordage.workers.cli.invoke import StreamedAnswer


def test_progress_of_tools_at_work_side_by_side_is_shown_with_their_names(capsys):
    streamed = StreamedAnswer(shown=True)
    for call, tool in (("c1", "weather"), ("c2", "trains")):
        streamed.emit("r", "tool.started", call=call, tool=tool)
    streamed.emit("r", "tool.progress", call="c1", text="20%")
    streamed.emit("r", "tool.progress", call="c2", text="0%")

    assert capsys.readouterr().err.split() == ["·", "weather", "·", "trains", "weather", "20%", "trains", "0%"]


def test_restarted_reply_is_marked_and_shown_once_as_the_last(capsys):
    streamed = StreamedAnswer(shown=True)
    streamed.emit("r", "model.reset", step=1)
    for text in ("one ", "tw"):
        streamed.emit("r", "model.delta", step=1, text=text)
    streamed.emit("r", "model.reset", step=1)
    streamed.emit("r", "model.delta", step=1, text="one two")
    streamed.emit("r", "model.replied", step=1, text="one two", calls=0)

    shown = capsys.readouterr()
    assert (shown.out, shown.err) == ("one tw\none two\n", "· the reply broke off and starts again\n")
    assert streamed.end() == "one two"
