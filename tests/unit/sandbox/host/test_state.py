from dataclasses import replace
from pathlib import Path

import pytest

from slicewise.cluster.language.errors import SlicewiseError
from slicewise.sandbox.host.inventory import NODES
from slicewise.sandbox.host.layout import Layout
from slicewise.sandbox.host.process import Process
from slicewise.sandbox.host.state import Program, State, load, parse_state, save, state_text
from slicewise.sandbox.host.status import node_rows, server_rows
from slicewise.sandbox.host.users import User, one_user, several_users
from slicewise.sandbox.lifecycle import limitations

STATE = State(
    layout=Layout(Path("/s"), 7),
    users=several_users(7, User("slurm", 64030, 64030)),
    program=Program(Path("/usr/bin/python3.11"), Path("/v/site-packages"), Path("/p")),
    device_nodes=True,
    processes={"munged": Process("munged", "slurm", 12, 99, 5.0)},
)


def test_state_survives_the_file(tmp_path: Path):
    state = replace(STATE, layout=Layout(tmp_path, 7))
    save(state)
    assert load(state.layout.state_file) == state


def test_no_file_is_no_state(tmp_path: Path):
    assert load(tmp_path / "state.json") is None


@pytest.mark.parametrize("text", ["", "{", "{}", '{"version": 99}', "[]"])
def test_a_damaged_file_is_an_expected_error(text: str):
    with pytest.raises(SlicewiseError, match="SW-SANDBOX-STATE"):
        parse_state(text)


def test_text_of_a_state_is_complete():
    assert parse_state(state_text(STATE)) == STATE


def test_a_full_sandbox_goes_without_nothing():
    assert limitations(STATE) == ()


def test_what_it_does_without_is_said():
    program = replace(STATE.program, project=Path("/s/site/project"))
    users = one_user(User("me", 1000, 1000))
    poor = replace(STATE, users=users, device_nodes=False, program=program)
    said = limitations(poor)
    assert [line.split(":")[0] for line in said] == [
        "not root",
        "no device nodes may be made here",
        "the users can't read the program here",
    ]


def test_a_server_that_ended_is_shown_so():
    assert [row.state for row in server_rows(STATE, lambda _: False)] == ["ended"]
    assert [row.place for row in server_rows(STATE, lambda _: True)] == ["run/munge/munge.sock"]


def test_nodes_are_unknown_while_slurmctld_is_silent():
    cut = {node.name: node.slices for node in NODES}
    rows = node_rows(STATE.layout, {"gpu02": "idle"}, cut)
    assert [row.state for row in rows] == ["unknown", "idle", "unknown", "unknown"]
