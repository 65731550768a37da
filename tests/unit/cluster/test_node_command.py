"""What root's batch jobs on a node say, and what becomes of those that fail."""

import asyncio
import base64
import gzip
import os
import time
from pathlib import Path

import pytest
from node_commands import command, given, runs_jobs

from cluster.errors import OutsideError, UnreachableError
from cluster.slurm import node_command
from cluster.slurm.node_command import run_on


@pytest.fixture
def slurm(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Runs jobs here. What a node runs stands there, too."""
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    runs_jobs(tmp_path)
    return tmp_path


async def test_a_command_runs_in_the_reservation_on_that_node_alone(slurm: Path) -> None:
    words = ("printf", "%s|", "it's", "two words", "$HOME", "")
    assert await run_on("gpu01", "slicewise_recut_1", words, 90) == "it's|two words|$HOME||"
    sbatch = next(one for one in given(slurm) if one.startswith("sbatch")).split()
    assert {"--reservation=slicewise_recut_1", "--partition=gpu", "--nodelist=gpu01"} <= set(sbatch)
    assert {"--mem=1", "--time=2", "--export=ALL", "--no-requeue"} <= set(sbatch)
    # A killed caller's job does not wait for ever.
    assert "--deadline=now+210" in sbatch
    await run_on("gpu01", "", ("true",), 90)
    assert "--reservation" not in [one for one in given(slurm) if one.startswith("sbatch")][-1]


async def test_a_job_has_path_and_slurm_s_variables_alone(
    slurm: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SLICEWISE_DATABASE_URL", "postgresql://slicewise:s3cret@db/slicewise")
    monkeypatch.setenv("SBATCH_ACCOUNT", "vision")
    monkeypatch.setenv("SLURM_CONF", "/etc/other/slurm.conf")
    found = await run_on("gpu01", "", ("env",), 60)
    assert "SLURM_CONF=/etc/other/slurm.conf\n" in found
    assert f"PATH={slurm}:" in found
    assert "s3cret" not in found
    assert "vision" not in found


async def test_what_was_read_is_taken_out_of_the_comment(slurm: Path) -> None:
    await run_on("gpu01", "", ("true",), 90)
    assert (slurm / "comment").read_text() == ""
    assert given(slurm)[-1] == "scontrol update JobId=7 Comment="


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
    with pytest.raises(OutsideError, match=r"false on gpu01: it ended with 1"):
        await run_on("gpu01", "", ("false",), 90)
    command(slurm, "sbatch", "echo sbatch: error: Invalid partition >&2; exit 1")
    with pytest.raises(OutsideError, match=r"Invalid partition.*\[SW-SLURM-FAILED\]"):
        await run_on("gpu01", "", ("true",), 90)


async def test_a_job_that_finds_no_core_is_cancelled(slurm: Path) -> None:
    (slurm / "waits").touch()
    with pytest.raises(OutsideError, match=r"not start in 0.5 s \(Resources\).*SW-SLURM-FAILED"):
        await run_on("gpu01", "", ("true",), 1)
    assert given(slurm)[-1] == "scancel --quiet 7"


async def test_a_job_that_ends_without_a_word_is_told(slurm: Path) -> None:
    """Such as of a node that goes down."""
    (slurm / "waits").touch()
    (slurm / "ended").touch()
    with pytest.raises(OutsideError, match=r"job 7 on gpu01: it ended without an answer"):
        await run_on("gpu01", "", ("true",), 60)


async def test_a_command_without_an_end_is_cancelled(slurm: Path) -> None:
    with pytest.raises(UnreachableError, match=r"no answer within 1 s.*SW-SLURM-DOWN"):
        await run_on("gpu01", "", ("sleep", "5"), 1)
    assert given(slurm)[-1] == "scancel --quiet 7"


async def test_who_is_cancelled_cancels(slurm: Path) -> None:
    (slurm / "given").touch()
    asked = asyncio.create_task(run_on("gpu01", "", ("sleep", "5"), 60))
    await asyncio.to_thread(until_asked, slurm)
    asked.cancel()
    with pytest.raises(asyncio.CancelledError):
        await asked
    assert given(slurm)[-1] == "scancel --quiet 7"


def until_asked(slurm: Path) -> None:
    """Until the job is looked at."""
    deadline_s = time.monotonic() + 30
    while "squeue" not in (slurm / "given").read_text() and time.monotonic() < deadline_s:
        time.sleep(0.05)


async def test_the_job_of_a_killed_caller_ends(
    slurm: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nobody reads what it says."""
    script = node_command._SCRIPT.replace(f"left={node_command._LOOKS}", "left=2")
    monkeypatch.setattr(node_command, "_SCRIPT", f"trap 'touch {slurm}/over' EXIT\n{script}")
    command(slurm, "squeue", "echo 'RUNNING|None|'")
    with pytest.raises(UnreachableError):
        await run_on("gpu01", "", ("true",), 3)
    assert (slurm / "over").exists()
    assert "slicewise:answer 1/1" in (slurm / "comment").read_text()


async def test_a_slurmctld_that_is_away_for_a_moment_is_waited_for(slurm: Path) -> None:
    """The job tries again, and so does who waits for it."""
    once = 'test -e $here/tried || { touch $here/tried; echo "Connection refused" >&2; exit 1; }'
    for name in ("scontrol", "squeue"):
        script = (slurm / name).read_text().split("\n", 3)[3]
        command(slurm, name, f"{once.replace('tried', f'tried-{name}')}\n{script}")
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
