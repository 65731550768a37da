"""Tests what is read of a door's word about its replica's start."""

import pytest

from slicewise.cluster.language.starts import Weights
from slicewise.launcher.rules.pools.server_memory import MEMORY
from slicewise.launcher.rules.probing.start_marks import PROTOCOL, marks_s, weights
from slicewise.launcher.scripts import door


def test_marks_are_told_by_how_long_ago_they_were():
    text = b"script 3.25\nengine 1.50 with words\n"
    assert marks_s(text, 100.0) == {"script": 96.75, "engine": 98.5}


@pytest.mark.parametrize(
    "text",
    [
        *(b"", b"script", b"script -3.25", b"script nan", b"script 1e3", b"Script 1.0"),
        *(b"script 3", b"\xff\xfe 1.0", b"script 99999999999.0", b"script  1.0"),
    ],
)
def test_what_can_t_be_read_is_left_out(text: bytes):
    assert marks_s(text, 100.0) == {}


def test_the_first_of_two_and_a_bounded_number_count():
    assert marks_s(b"script 5.0\nscript 1.0\n", 100.0) == {"script": 95.0}
    many = "".join(f"{'a' * (1 + number)} 1.0\n" for number in range(16)) * 2 + "late 1.0\n"
    assert "late" not in marks_s(many.encode(), 100.0)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (b"script 5.0\nbrought 3.25 hit 4683074048\nengine 1.0\n", Weights("node", 4683074048)),
        (b"brought 3.25 copied 7\n", Weights("copied", 7)),
        (b"brought 3.25 source 7 room\n", Weights("remote", 7, "room")),
        (b"brought 3.25 source 0 folder\n", Weights("remote", None, "folder")),
        (b"brought 3.25 source 7 somehow\n", Weights("remote", 7)),
        (b"brought 3.25 hit 7 room\n", Weights("node", 7)),
        (b"brought 3.25 hit\n", Weights("node")),
        (b"brought 3.25 hit 999999999999999\n", Weights("node", 999999999999999)),
        *(
            (text, Weights())
            for text in (
                *(b"", b"brought 3.25 hit x\n", b"brought hit\n", b"\xff hit"),
                *(b"brought 3.25 hit -7\n", b"brought 3.25 hit 9999999999999999\n"),
            )
        ),
    ],
)
def test_where_the_weights_were_is_told_in_words_and_bytes_that_are_known(
    text: bytes, expected: Weights
):
    assert weights(text) == expected


def test_door_and_launcher_mean_the_same_protocol():
    assert (door.START, door.MEMORY) == (PROTOCOL, MEMORY)
