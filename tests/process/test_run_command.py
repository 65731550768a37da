import asyncio
import gc
import os
import sys
from pathlib import Path

import pytest
from waiting import PATIENCE_S, until_true

from slicewise.cluster.language.codes import Code
from slicewise.cluster.language.errors import OutsideError, UnreachableError
from slicewise.cluster.language.slurm.asked import counted_waits
from slicewise.cluster.runtime.together import together
from slicewise.cluster.slurm.nodes import SINFO
from slicewise.cluster.slurm.run_command import SQUEUE, attempt, run


def shell(script: str) -> tuple[str, ...]:
    return ("/bin/sh", "-c", script)


async def test_output_and_standard_input() -> None:
    assert await run(shell("cat; echo \u00e9"), stdin="a\n") == "a\n\u00e9\n"


async def test_an_answer_is_waited_for_until_it_begins(tmp_path: Path) -> None:
    """Printing and reading many jobs takes longer than slurmctld does, which rests meanwhile."""
    end = tmp_path / "end"
    script = f"echo a; until [ -e {end} ]; do sleep 0.01; done; echo b"
    with counted_waits() as slurm:
        running = asyncio.create_task(run(shell(script)))
    with counted_waits() as others:
        await until_true(lambda: slurm.waited_s)
        waited_s = slurm.waited_s
        end.touch()
        assert await running == "a\nb\n"
        assert slurm.waited_s == waited_s
        assert await run(shell(":")) == ""
    assert others.waited_s > 0
    assert slurm.waited_s == waited_s, "what others ask meanwhile counts for them"


async def test_a_warning_is_no_answer(tmp_path: Path) -> None:
    """Where slurm.conf has an old key, commands say so before they ask slurmctld anything."""
    warned, end = tmp_path / "warned", tmp_path / "end"
    script = f"echo a >&2; touch {warned}; until [ -e {end} ]; do sleep 0.01; done; echo b"
    with counted_waits() as slurm:
        running = asyncio.create_task(run(shell(script)))
        await until_true(warned.exists)
        await asyncio.sleep(0.1)
        assert not slurm.waited_s
        end.touch()
        assert await running == "b\n"
    assert slurm.waited_s


async def test_surroundings_are_fixed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SQUEUE_STATES", "RUNNING")
    monkeypatch.setenv("SLURM_CONF", "/etc/slurm/other.conf")
    monkeypatch.setenv("TZ", "Asia/Tokyo")
    script = 'echo "$TZ $LC_ALL $SLURM_TIME_FORMAT $SLURM_BITSTR_LEN ${SQUEUE_STATES-none}"'
    assert await run(shell(script)) == "UTC C %s 0 none\n"
    given = {"SQUEUE_FORMAT2": "JobId"}
    assert await run(shell("echo $SLURM_CONF $SQUEUE_FORMAT2"), variables=given) == (
        "/etc/slurm/other.conf JobId\n"
    )


async def test_of_a_federation_only_this_cluster_is_shown(monkeypatch: pytest.MonkeyPatch) -> None:
    """With FederationParameters=fed_display another cluster's runs would be charged here."""
    monkeypatch.setenv("SACCT_FEDERATION", "1")
    monkeypatch.setenv("SLURM_CLUSTERS", "other")
    named = "${SACCT_LOCAL-} ${SCONTROL_LOCAL-} ${SACCT_FEDERATION-none} ${SLURM_CLUSTERS-none}"
    assert await run(shell(f'echo "{named}"')) == "1 1 none none\n"
    for command in (SQUEUE, SINFO):
        assert "--local" in command


@pytest.mark.parametrize("terminal", ["", "dumb", "xterm"])
async def test_a_line_is_echoed_as_it_was_read(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, terminal: str
) -> None:
    (tmp_path / "inputrc").write_text("set editing-mode vi\nset show-mode-in-prompt on\n")
    monkeypatch.setenv("INPUTRC", str(tmp_path / "inputrc"))
    monkeypatch.setenv("COLUMNS", "20")
    monkeypatch.setenv("TERM", terminal)
    if not terminal:
        monkeypatch.delenv("TERM")
    # As sacctmgr and scontrol do it where they are built with readline.
    script = "import ctypes, readline; ctypes.CDLL(readline.__file__).readline(b'sacctmgr: ')"
    line = f"show assoc format={','.join(f'ID%{width}' for width in range(1, 500))}\n"
    assert await run((sys.executable, "-c", script), stdin=line) == f"sacctmgr: {line}"


async def test_failures_carry_the_commands_words() -> None:
    with pytest.raises(OutsideError, match=r"bad QOS.*\[SW-SLURM-FAILED\]"):
        await run(shell("echo bad QOS >&2; exit 1"))
    with pytest.raises(OutsideError, match=r"Nothing modified.*\[SW-SLURM-FAILED\]"):
        await run(shell("echo Nothing modified; exit 1"))


async def test_a_missing_slurm_conf_is_named_as_that() -> None:
    """A unit of systemd has no SLURM_CONF; Slurm's own words are of DNS."""
    words = "squeue: fatal: Could not establish a configuration source"
    with pytest.raises(OutsideError, match=r"SLURM_CONF must name it.*/etc/slicewise/environment"):
        await run(shell(f"echo {words} >&2; exit 1"))


async def test_failures_can_be_answers() -> None:
    reply = await attempt(shell("echo some; echo words >&2; exit 3"))
    assert (reply.status, reply.output, reply.complaint) == (3, "some\n", "words")


@pytest.mark.parametrize(
    "words",
    [
        "slurm_load_jobs error: Unable to contact slurm controller (connect failure)",
        "sacctmgr: error: Problem talking to the database: Connection refused",
    ],
)
async def test_a_server_that_is_away(words: str) -> None:
    with pytest.raises(UnreachableError, match="SW-SLURM-DOWN"):
        await run(shell(f"echo '{words}' >&2; exit 1"))


async def test_a_missing_command() -> None:
    with pytest.raises(OutsideError, match="no-such-command is not on PATH"):
        await run(("no-such-command",))


def is_gone(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return True
    return False


async def test_a_late_command_is_killed(tmp_path: Path) -> None:
    with pytest.raises(UnreachableError, match=r"no answer within 2 s.*\[SW-SLURM-DOWN\]"):
        await run(shell(f"echo $$ >>{tmp_path}/pid; exec sleep 600"), deadline_s=2)
    # None, where the machine has not come to it before the deadline.
    (tmp_path / "pid").touch()
    assert all(map(is_gone, map(int, (tmp_path / "pid").read_text().split())))


async def test_a_late_command_that_prints_on_and_on_is_killed_too() -> None:
    """More than asyncio keeps of a pipe without a reader."""
    async with asyncio.timeout(PATIENCE_S):
        with pytest.raises(UnreachableError, match=r"no answer within 0\.2 s"):
            await run(("yes",), deadline_s=0.2)


async def test_a_cancelled_call_leaves_nothing_behind(tmp_path: Path) -> None:
    file = tmp_path / "pid"
    call = asyncio.create_task(run(shell(f"echo $$ >{file}; exec sleep 600")))
    await until_true(lambda: file.exists() and file.read_text())
    call.cancel()
    with pytest.raises(asyncio.CancelledError):
        await call
    assert is_gone(int(file.read_text()))


def test_commands_that_are_late_together_leave_nothing_behind(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The first one's failure ends the loop while the others are being killed."""
    told: list[object] = []
    monkeypatch.setattr("sys.unraisablehook", told.append)
    for _ in range(8):
        with pytest.raises(UnreachableError):
            asyncio.run(_all_late(20))
        gc.collect()
    assert told == []


async def _all_late(count: int) -> None:
    await asyncio.gather(*(run(("sleep", "60"), deadline_s=0.05) for _ in range(count)))


def test_no_command_outlives_the_failure_of_another() -> None:
    """Here the loop ends in the moment in which the command starts."""

    async def fails() -> None:
        raise UnreachableError(Code.SLURM_DOWN, "It does not answer.", "Start it.")

    async def both() -> None:
        await together(run(("sleep", "600")), fails())

    with pytest.raises(UnreachableError):
        asyncio.run(both())


@pytest.mark.parametrize(
    ("command", "words", "server"),
    [
        ("sacctmgr", "Sending PersistInit msg: Connection refused", "slurmdbd runs"),
        ("sacctmgr", "Sending PersistInit msg: Unable to connect to database", "own database"),
        ("squeue", "Unable to contact slurm controller", "slurmctld"),
    ],
)
async def test_the_server_that_does_not_answer_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, command: str, words: str, server: str
) -> None:
    program = tmp_path / command
    program.write_text(f"#!/bin/sh\necho '{words}' >&2\nexit 1\n")
    program.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=os.pathsep)
    with pytest.raises(UnreachableError, match=server):
        await run((command,))
