"""Tests who is asked for confirmation: a person at a terminal, and no script."""

import io

import pytest
import typer

from slicewise.cluster.language.errors import SlicewiseError
from slicewise.cluster.runtime.questions import confirm


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_a_person_at_a_terminal_is_asked_on_stderr(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    monkeypatch.setattr("sys.stdin", Terminal("y\nn\n"))
    confirm("Remove it?", yes=False)
    with pytest.raises(typer.Abort):
        confirm("Remove it?", yes=False)
    out, err = capsys.readouterr()
    assert (out.strip(), err.count("Remove it? [y/N]")) == ("", 2)


@pytest.mark.parametrize(
    ("stdin", "as_json"), [(io.StringIO("y\n"), False), (Terminal("y\n"), True), (None, False)]
)
def test_a_script_is_told_what_to_add_and_its_input_is_left(
    monkeypatch: pytest.MonkeyPatch, stdin: io.StringIO | None, as_json: bool
):
    monkeypatch.setattr("sys.stdin", stdin)
    with pytest.raises(SlicewiseError) as raised:
        confirm("Remove it?", yes=False, as_json=as_json)
    refusal = raised.value.refusal
    assert (refusal.code, refusal.hint) == ("SW-ABORTED", "--yes answers it.")
    assert "Remove it?" in refusal.message
    assert stdin is None or stdin.read() == "y\n"
    confirm("Remove it?", yes=True, as_json=as_json)
