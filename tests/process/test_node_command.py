"""Tests the answers of root's batch jobs on a node, and jobs that fail."""

import asyncio
import base64
import gzip
import os
from pathlib import Path

import pytest
from stand_ins.node_commands import command, given, runs_jobs
from waiting import until_true

from slicewise.cluster.language.errors import OutsideError, UnreachableError
from slicewise.cluster.slurm import node_command
from slicewise.cluster.slurm.node_command import run_on


@pytest.fixture
def slurm(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Runs a job here. What a node runs stands there, too. Both look ten times as often."""
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    for name in ("_POLL_S", "_PENDING_POLL_S"):
        monkeypatch.setattr(node_command, name, getattr(node_command, name) / 10)
    looks = 10 * node_command._LOOKS
    script = node_command._SCRIPT.replace(f"-gt {node_command._LOOKS}", f"-gt {looks}")
    monkeypatch.setattr(node_command, "_SCRIPT", script.replace("sleep 0.3", "sleep 0.03"))
    monkeypatch.setattr(node_command, "_LOOKS", looks)
    runs_jobs(tmp_path)
    return tmp_path


def sbatch(slurm: Path) -> set[str]:
    (found,) = (set(one.split()) for one in given(slurm) if one.startswith("sbatch"))
    return found


async def test_a_command_runs_in_the_reservation_on_that_node_alone(slurm: Path) -> None:
    words = ("printf", "%s|", "it's", "two words", "$HOME", "")
    assert await run_on("gpu01", "slicewise_repartition_1", words, 90) == "it's|two words|$HOME||"
    options = sbatch(slurm)
    assert {
        "--reservation=slicewise_repartition_1",
        "--partition=gpu",
        "--nodelist=gpu01",
    } <= options
    assert {"--mem=1", "--time=2", "--export=ALL", "--no-requeue"} <= options
    # A killed caller's job does not wait for ever.
    assert "--deadline=now+210" in options
    assert "--priority=TOP" not in options


async def test_without_a_reservation_it_comes_before_all_others(slurm: Path) -> None:
    """Of the others Slurm may look at a hundred a minute."""
    await run_on("gpu01", "", ("true",), 90)
    assert "--priority=TOP" in sbatch(slurm)
    assert not [one for one in sbatch(slurm) if one.startswith("--reservation")]


async def test_it_is_not_submitted_before_a_core_is_free(slurm: Path) -> None:
    """Others would wait with it."""
    rows = "test -e $here/tried && echo 'gpu|3/5/0/8' || echo 'gpu|8/0/0/8'; touch $here/tried"
    command(slurm, "sinfo", rows)
    await run_on("gpu01", "", ("true",), 90)
    assert len([one for one in given(slurm) if one.startswith("sinfo")]) == 2
    (slurm / "given").unlink()
    command(slurm, "sinfo", "echo 'gpu|8/0/0/8'")
    with pytest.raises(OutsideError, match=r"gpu01: no core became free there in 0.5 s"):
        await run_on("gpu01", "", ("true",), 1)
    assert not [one for one in given(slurm) if one.startswith("sbatch")]


async def test_a_job_has_path_and_slurm_conf_alone(
    slurm: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SLICEWISE_DATABASE_URL", "postgresql://slicewise:s3cret@db/slicewise")
    monkeypatch.setenv("SBATCH_ACCOUNT", "vision")
    monkeypatch.setenv("SLURM_CLUSTERS", "other")
    monkeypatch.setenv("SLURM_JWT", "s3cret")
    monkeypatch.setenv("SLURM_CONF", "/etc/other/slurm.conf")
    found = await run_on("gpu01", "", ("env",), 60)
    assert "SLURM_CONF=/etc/other/slurm.conf\n" in found
    assert f"PATH={slurm}:" in found
    for word in ("s3cret", "vision", "SLURM_CLUSTERS"):
        assert word not in found


async def test_what_was_read_is_taken_out_of_the_comment(slurm: Path) -> None:
    await run_on("gpu01", "", ("true",), 90)
    assert (slurm / "comment").read_text() == ""


def give_up_after(looks: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """So long the job waits for a word of its caller's."""
    script = node_command._SCRIPT.replace(f"-gt {node_command._LOOKS}", f"-gt {looks}")
    monkeypatch.setattr(node_command, "_SCRIPT", script)


async def test_it_does_nothing_before_it_is_told_to(
    slurm: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its caller may have been killed, or have given up, as Slurm did not answer in time."""
    give_up_after(20, monkeypatch)
    command(slurm, "squeue", "echo 'PENDING|None|'")
    with pytest.raises(OutsideError):
        await run_on("gpu01", "", ("touch", str(slurm / "done")), 1)
    await until_true((slurm / "ended").exists)
    assert not (slurm / "done").exists()


async def test_what_nobody_reads_is_taken_out_of_the_comment(
    slurm: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Who should has been killed."""
    give_up_after(40, monkeypatch)
    command(slurm, "squeue", "echo 'RUNNING|None|'")
    with pytest.raises(UnreachableError):
        await run_on("gpu01", "", ("touch", str(slurm / "done")), 1)
    await until_true((slurm / "ended").exists)
    assert (slurm / "done").exists()
    assert [one for one in given(slurm) if "Comment=slicewise:answer 1/1" in one]
    assert (slurm / "comment").read_text() == ""


async def test_a_part_that_was_written_over_is_told_again(slurm: Path) -> None:
    """By an operator, or by a word of this caller's that came late."""
    script = (slurm / "scontrol").read_text().split("\n", 3)[3]
    over = (
        'case "$*" in *slicewise:answer*) test -e $here/tried || {'
        " touch $here/tried; printf hello >$here/comment; exit; } ;; esac"
    )
    command(slurm, "scontrol", f"{over}\n{script}")
    assert await run_on("gpu01", "", ("echo", "found"), 60) == "found\n"
    assert (slurm / "tried").exists()


async def test_a_command_s_own_code_is_passed_on(slurm: Path) -> None:
    words = "A process holds it: it stays.\\nSee which.\\nSW-MIG-IN-USE\\n"
    command(slurm, "slicewise", f"printf '{words}' >&2; exit 1")
    with pytest.raises(OutsideError, match=r"^gpu01: A process holds it: it stays. See") as caught:
        await run_on("gpu01", "", ("slicewise", "node", "cut"), 90)
    assert caught.value.refusal.code == "SW-MIG-IN-USE"


async def test_any_other_failure_is_slurm_s_or_the_command_s(slurm: Path) -> None:
    command(slurm, "systemctl", "echo no such unit >&2; exit 5")
    with pytest.raises(OutsideError, match=r"systemctl on gpu01: no such unit"):
        await run_on("gpu01", "", ("systemctl",), 90)
    command(slurm, "sbatch", "echo sbatch: error: Invalid partition >&2; exit 1")
    with pytest.raises(OutsideError, match=r"Invalid partition.*\[SW-SLURM-FAILED\]"):
        await run_on("gpu01", "", ("true",), 90)


async def test_a_failure_without_a_word_is_its_status(slurm: Path) -> None:
    with pytest.raises(OutsideError, match=r"false on gpu01: it ended with 1"):
        await run_on("gpu01", "", ("false",), 90)


async def test_words_of_sbatch_that_are_no_job_are_told(slurm: Path) -> None:
    command(slurm, "sbatch", "cat >/dev/null; echo Welcome")
    with pytest.raises(OutsideError, match=r"it did not name a job: Welcome.*\[SW-SLURM-FAILED\]"):
        await run_on("gpu01", "", ("true",), 90)
    (slurm / "waits").touch()
    (slurm / "dies").touch()
    command(slurm, "sbatch", "cat >/dev/null; echo Welcome; echo '7;other'")
    with pytest.raises(OutsideError, match=r"job 7 on gpu01: it ended"):
        await run_on("gpu01", "", ("true",), 90)


async def test_a_job_that_finds_no_core_is_cancelled(slurm: Path) -> None:
    (slurm / "waits").touch()
    with pytest.raises(OutsideError, match=r"not start in 0.5 s \(Resources\).*SW-SLURM-FAILED"):
        await run_on("gpu01", "", ("true",), 1)
    assert given(slurm)[-1] == "scancel --quiet 7"


async def test_a_job_that_ends_without_a_word_is_told(slurm: Path) -> None:
    """Such as of a node that goes down."""
    (slurm / "waits").touch()
    (slurm / "dies").touch()
    with pytest.raises(OutsideError, match=r"job 7 on gpu01: it ended without an answer"):
        await run_on("gpu01", "", ("true",), 60)


async def test_a_command_without_an_end_is_cancelled(slurm: Path) -> None:
    with pytest.raises(UnreachableError, match=r"no answer within 1 s.*SW-SLURM-DOWN"):
        await run_on("gpu01", "", ("sleep", "60"), 1)
    assert given(slurm)[-1] == "scancel --quiet 7"


async def test_who_is_cancelled_cancels(slurm: Path) -> None:
    begins = ("sh", "-c", f"touch {slurm}/asked; sleep 5")
    asked = asyncio.create_task(run_on("gpu01", "", begins, 60))
    await until_true((slurm / "asked").exists)
    asked.cancel()
    with pytest.raises(asyncio.CancelledError):
        await asked
    assert given(slurm)[-1] == "scancel --quiet 7"


async def test_a_slurmctld_that_is_away_for_a_moment_is_waited_for(slurm: Path) -> None:
    """The job tries again, and so does who waits for it."""
    for name, words in (("scontrol", "Connection refused"), ("squeue", "Message receive failure")):
        script = (slurm / name).read_text().split("\n", 3)[3]
        tried = f"$here/tried-{name}"
        once = f"test -e {tried} || {{ touch {tried}; echo {words} >&2; exit 1; }}"
        command(slurm, name, f"{once}\n{script}")
    assert await run_on("gpu01", "", ("echo", "found"), 60) == "found\n"


async def test_a_node_that_prints_without_end_is_not_listened_to(slurm: Path) -> None:
    command(slurm, "slicewise", "head -c 300000 /dev/urandom")
    with pytest.raises(OutsideError, match=r"it printed too much.*\[SW-SLURM-FAILED\]"):
        await run_on("gpu01", "", ("slicewise",), 60)


async def test_an_answer_comes_in_parts(slurm: Path) -> None:
    """One more than Slurm takes as a comment, and each part once."""
    length = 8000
    command(slurm, "slicewise", f"head -c {length} /dev/urandom | base64 -w0")
    found = await run_on("gpu01", "", ("slicewise",), 60)
    assert len(base64.b64decode(found, validate=True)) == length
    parts = [one for one in given(slurm) if "Comment=slicewise:answer" in one]
    assert len(parts) > 8
    assert max(len(one.partition("Comment=")[2]) for one in parts) < 1024


def answers(place: Path, comment: str) -> None:
    """What root of a node writes there by himself."""
    command(place, "squeue", f"echo 'RUNNING|None|{comment}'")


async def test_a_small_answer_is_not_unpacked_to_a_large_one(
    slurm: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(node_command, "_MOST_BYTES", 1 << 16)
    bomb = base64.b64encode(gzip.compress(bytes(1 << 24))).decode()
    none = base64.b64encode(gzip.compress(b"")).decode()
    for output, complaint in ((bomb, none), (none, bomb)):
        answers(slurm, f"slicewise:answer 1/1 0 {output} {complaint}")
        with pytest.raises(OutsideError, match=r"more than 65536 bytes.*\[SW-SLURM-FAILED\]"):
            await run_on("gpu01", "", ("true",), 60)


@pytest.mark.parametrize("output", ["x", "eA==", "H4sIAAAAAAAA", "a b"])
async def test_an_answer_that_nobody_packed_is_told(slurm: Path, output: str) -> None:
    answers(slurm, f"slicewise:answer 1/1 0 {output} {output}")
    with pytest.raises(OutsideError, match=r"the answer of gpu01.*\[SW-SLURM-FAILED\]"):
        await run_on("gpu01", "", ("true",), 60)


async def test_words_of_a_node_are_one_line_without_control_characters(slurm: Path) -> None:
    words = r"\033[2J\007one\rtwo\nReason=x\nSW-MIG-CUT\n"
    command(slurm, "slicewise", f"printf '{words}' >&2; exit 1")
    with pytest.raises(OutsideError) as caught:
        await run_on("gpu01", "", ("slicewise", "node", "cut"), 90)
    assert caught.value.refusal.message == "gpu01: ?[2J?one two Reason=x"
    command(slurm, "slicewise", "yes x | head -c 9000 >&2; exit 1")
    with pytest.raises(OutsideError) as caught:
        await run_on("gpu01", "", ("slicewise",), 90)
    assert len(caught.value.refusal.message) < 1100
