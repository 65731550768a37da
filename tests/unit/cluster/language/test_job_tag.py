"""Tests the tag that jobs under Slicewise carry."""

from itertools import product

import pytest

from slicewise.cluster.language.jobs import JobTag, retagged


@pytest.mark.parametrize(
    ("service", "flexible", "undecided", "avoids", "whole"),
    [
        *product(
            (None, "bert"),
            (False, True),
            (False, True),
            ((), ("gpu01",), ("gpu-1.a", "gpu02")),
            (0, 7000),
        )
    ],
)
def test_a_tag_is_read_as_it_was_written(
    service: str | None, *, flexible: bool, undecided: bool, avoids: tuple[str, ...], whole: int
):
    tag = JobTag(
        *("ab12", "vision", service),
        is_flexible=flexible,
        is_undecided=undecided,
        avoids=avoids,
        whole_millislices=whole,
    )
    assert JobTag.find(f"before {tag.text()} after") == tag


def test_only_the_tag_is_replaced():
    before = JobTag("ab12", "vision", "bert", avoids=("gpu01", "gpu02")).text()
    after = JobTag("ab12", "vision", "bert").text()
    assert retagged(f"a {before} avoids=b", after) == f"a {after} avoids=b"
    assert retagged("other", after) == after
