"""Tests the commands that etc/groups-to-accounts.sh makes out of the lines of ``getent group``."""

import os
import subprocess
from pathlib import Path

import pytest

SCRIPT = Path(__file__).parents[2] / "etc" / "groups-to-accounts.sh"
NOW = "root|\nroot|root\nbio|\nbio|alice\nbio|carol\nother|\nother|erin\n"


def asked(
    tmp_path: Path, groups: str, *parent: str, now: str = NOW
) -> "subprocess.CompletedProcess[str]":
    (tmp_path / "now").write_text(now)
    argv = ("sh", str(SCRIPT), "c", "hpc_", str(tmp_path / "now"), *parent)
    return subprocess.run(argv, input=groups, capture_output=True, text=True, check=False)


def test_accounts_and_users_come_and_who_left_a_group_goes(tmp_path: Path):
    groups = "adm:x:4:root\nhpc_Bio:x:5:alice,bob\nhpc_new:x:6:bob,alice\nhpc_none:x:7:\n"
    done = asked(tmp_path, groups, "science")
    assert done.stdout.splitlines() == [
        "sacctmgr -i add user bob account=bio cluster=c",
        "sacctmgr -i add account new parent=science cluster=c",
        "sacctmgr -i add user bob,alice account=new cluster=c",
        "sacctmgr -i add account none parent=science cluster=c",
        "sacctmgr -i remove user where name=carol account=bio cluster=c",
    ]
    assert (done.returncode, done.stderr) == (0, "")


def test_a_group_that_stands_twice_has_the_members_of_both(tmp_path: Path):
    done = asked(tmp_path, "hpc_bio:x:5:alice\nhpc_bio:x:5:carol,alice\n")
    assert (done.returncode, done.stdout) == (0, "")


def test_a_user_in_upper_case_is_the_one_that_slurm_has_in_lower_case(tmp_path: Path):
    assert asked(tmp_path, "hpc_bio:x:5:Alice,carol\n").stdout == ""
    assert asked(tmp_path, "hpc_bio:x:5:alice,carol\n", now=NOW.replace("al", "Al")).stdout == ""
    assert asked(tmp_path, "hpc_bio:x:5:alice,CAROL,Bob,bob,Root\n").stdout.splitlines() == [
        "sacctmgr -i add user Bob account=bio cluster=c"
    ]


def test_a_group_that_lists_no_member_empties_no_account(tmp_path: Path):
    done = asked(tmp_path, "hpc_bio:x:5:\nhpc_other:x:6:dan\n")
    assert done.stdout.splitlines() == [
        "sacctmgr -i add user dan account=other cluster=c",
        "sacctmgr -i remove user where name=erin account=other cluster=c",
    ]
    assert done.stderr.count('no member is listed for account "bio"') == 1
    assert len(done.stderr.splitlines()) == 1


def test_a_user_whose_first_group_it_is_stays(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    getent = tmp_path / "getent"
    getent.write_text(
        """#!/bin/sh
case "$*" in
    "passwd alice") echo "alice:x:1000:5::/home/alice:/bin/sh" ;;
    "passwd carol") echo "carol:x:1001:6::/home/carol:/bin/sh" ;;
    *) exit 2 ;;
esac
"""
    )
    getent.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    done = asked(tmp_path, "hpc_bio:x:5:bob\nhpc_other:x:6:bob\n")
    assert [line for line in done.stdout.splitlines() if "remove" in line] == [
        "sacctmgr -i remove user where name=carol account=bio cluster=c",
        "sacctmgr -i remove user where name=erin account=other cluster=c",
    ]


def test_a_new_account_is_at_the_top_unless_told_otherwise(tmp_path: Path):
    assert (
        asked(tmp_path, "hpc_a:x:1:\n").stdout
        == "sacctmgr -i add account a parent=root cluster=c\n"
    )


@pytest.mark.parametrize(
    "line",
    [
        "hpc_$(reboot):x:1:alice",
        "hpc_:x:1:alice",
        "hpc_root:x:1:alice",
        "hpc_-i:x:1:",
        "hpc_a b:x:1:",
    ],
)
def test_a_group_whose_name_is_no_plain_one_is_left_out(tmp_path: Path, line: str):
    done = asked(tmp_path, f"hpc_bio:x:1:alice,carol\n{line}\n")
    assert (done.returncode, done.stdout) == (0, "")
    assert "left out: group" in done.stderr


def test_a_user_whose_name_is_no_plain_one_is_left_out(tmp_path: Path):
    done = asked(tmp_path, "hpc_bio:x:1:alice,carol,bad;name,root,-x\n")
    assert done.stdout == ""
    assert done.stderr.count("left out: user") == 3


@pytest.mark.parametrize(
    ("groups", "now"), [("", NOW), ("adm:x:4:alice\n", NOW), ("hpc_bio:x:5:alice\n", "")]
)
def test_a_directory_or_slurm_that_does_not_answer_changes_nothing(
    tmp_path: Path, groups: str, now: str
):
    done = asked(tmp_path, groups, now=now)
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr


def test_other_words_are_a_wrong_use():
    done = subprocess.run(("sh", str(SCRIPT)), capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert "usage" in done.stderr
