"""Tests what is read of a door's word about its replica's start."""

import pytest

from slicewise.launcher.rules.probing.start_marks import PROTOCOL, marks_s, start_class
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
        (b"script 5.0\nbrought 3.25 hit\nengine 1.0\n", "node"),
        (b"brought 3.25 copied\n", "copied"),
        (b"brought 3.25 source\n", "remote"),
        *(
            (text, "remote")
            for text in (b"", b"brought 3.25 hit x\n", b"brought hit\n", b"\xff hit")
        ),
    ],
)
def test_where_the_weights_were_is_one_of_three_words(text: bytes, expected: str):
    assert start_class(text) == expected


def test_door_and_launcher_mean_the_same_protocol():
    assert door.START == PROTOCOL
