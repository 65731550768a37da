"""Tests reading many scripts from one answer of scontrol, with readline and without."""

from collections.abc import Callable

import pytest

from slicewise.cluster.language.slurm.submissions import parse_scripts, script_questions

MARK = "x1f"
SCRIPTS = {
    814: "#!/bin/bash\n#SLICEWISE name=bert\ntrue\n",
    # Without a line break at its end, with one too many, with scontrol's own words.
    815: "#!/bin/bash\ntrue",
    817: "#!/bin/bash\ntrue\n\n",
    818: "#!/bin/bash\nscontrol: show hostnames\nscontrol: ",
}
ASKED = (814, 815, 816, 817, 818)
"""Of one of them Slurm has no script."""


def echoed() -> str:
    lines = (
        f"scontrol: write batch_script {job_id} -\n{SCRIPTS.get(job_id, '')}"
        f"scontrol: show hostnames {MARK}\n{MARK}\n"
        for job_id in ASKED
    )
    return "".join(lines) + "scontrol: "


def plain() -> str:
    lines = (f"scontrol: {SCRIPTS.get(job_id, '')}scontrol: {MARK}\n" for job_id in ASKED)
    return "".join(lines) + "scontrol: "


@pytest.mark.parametrize("answer", [echoed, plain])
def test_each_script_is_as_it_was_submitted(answer: Callable[[], str]) -> None:
    assert parse_scripts(answer(), ASKED, MARK) == SCRIPTS


def test_what_was_not_answered_any_more_is_left_out() -> None:
    cut = echoed()[: echoed().index("scontrol: write batch_script 817")]
    assert parse_scripts(cut, ASKED, MARK).keys() == {814, 815}
    assert parse_scripts("", ASKED, MARK) == {}


def test_each_script_is_asked_for_with_a_mark_behind_it() -> None:
    assert script_questions((814, 815), MARK) == (
        f"write batch_script 814 -\nshow hostnames {MARK}\n"
        f"write batch_script 815 -\nshow hostnames {MARK}\n"
    )
