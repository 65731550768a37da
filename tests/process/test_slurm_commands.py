"""Tests how Slurm's commands are called, with stand-ins that record their arguments."""

import os
import re
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest
from builders.why_world import running

from slicewise.cluster.language.errors import OutsideError, UnreachableError
from slicewise.cluster.language.slurm import parse
from slicewise.cluster.language.slurm.asked import RequestCount
from slicewise.cluster.language.slurm.interface import Changed, JobChange, Requeued, Tasks
from slicewise.cluster.language.slurm.parse import ASSOCIATION_FIELDS, parse_associations
from slicewise.cluster.language.slurm.unread import Unread
from slicewise.cluster.slurm import commands
from slicewise.cluster.slurm.commands import CommandSlurm
from slicewise.cluster.slurm.nodes import NodeReader
from slicewise.cluster.slurm.run_command import Reply, secret_columns

TASKS = Tasks(814, frozenset({0, 1, 2, 5}))
# A field in SQUEUE_FORMAT2 is NAME:SEPARATOR; the values below take its place. Task 7 is not among
# those above.
SQUEUE = """case "$*" in *--format=%i*) exit 0; esac
row() {{
  echo "$SQUEUE_FORMAT2" | sed -e 's/State:/SPECIAL_EXIT/' -e 's/RestartCnt:/{restarts}/' \
    -e "s/ArrayTaskId:/$1/" -e "s/SubmitTime:/$2/" -e 's/,//g'
}}
row 5 {submit_s}
row 7 {other_submit_s}
"""

StandIn = Callable[[str, str], None]


@pytest.fixture
def stand_in(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> StandIn:
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")

    def write(command: str, script: str) -> None:
        note = f'{{ echo "$0 $*"; cat; }} >>{tmp_path}/{command}.log\n'
        (tmp_path / command).write_text(f"#!/bin/sh\n{note}{script}", encoding="utf-8")
        (tmp_path / command).chmod(0o755)

    return write


def noted(tmp_path: Path, command: str) -> Sequence[str]:
    lines = (tmp_path / f"{command}.log").read_text(encoding="utf-8").splitlines()
    return [line.removeprefix(f"{tmp_path}/") for line in lines]


async def test_what_may_not_be_requeued_is_let_be_first(tmp_path: Path, stand_in: StandIn) -> None:
    """Its user has forbidden it; else nothing took its GPU back."""
    may = tmp_path / "may"
    stand_in("scontrol", f'case "$1" in update) touch {may} ;; *) test -e {may} ;; esac')
    await CommandSlurm().requeue_hold(TASKS)
    assert noted(tmp_path, "scontrol") == [
        "scontrol requeuehold 814_[0-2,5]",
        "scontrol update JobId=814_[0-2,5] Requeue=1",
        "scontrol requeuehold 814_[0-2,5]",
    ]


RUNNING = """row() {
  echo "$SQUEUE_FORMAT2" | sed -e "s|ArrayJobId:|$1|" -e "s|ArrayTaskId:|$2|" -e "s|JobId:|$3|" \
    -e "s/StartTime:/$4/" -e 's/,//g'
}
row 5 N/A 5 100
row 814 5 7 200
row 814 6 814 200
row 8 N/A 8 300
row 9 N/A x 300
"""


async def test_only_the_run_that_is_meant_is_requeued(tmp_path: Path, stand_in: StandIn) -> None:
    """The number of an array's last task is the array's, and would address all of its tasks."""
    stand_in("squeue", RUNNING)
    stand_in("scontrol", "")
    unread: list[Unread] = []
    done = await CommandSlurm(unread.append).requeue(
        {(5, 100), (7, 200), (814, 200), (8, 299), (11, 100)}
    )
    assert done == Requeued(frozenset({(5, 100), (7, 200), (814, 200)}))
    assert sorted(noted(tmp_path, "scontrol")) == [
        "scontrol requeue incomplete 5",
        "scontrol requeue incomplete 814_[5]",
        "scontrol requeue incomplete 814_[6]",
    ]
    (argv,) = [line for line in noted(tmp_path, "squeue") if line]
    assert argv == "squeue --noheader --all --local --array --states=running"
    assert [one.record for one in unread] == ["run"]


async def test_what_slurm_refuses_to_requeue_is_said_and_runs_on(
    tmp_path: Path, stand_in: StandIn
) -> None:
    stand_in("squeue", RUNNING)
    says = "Requested operation is presently disabled for job 5"
    stand_in("scontrol", f'echo "{says}" >&2; exit 1')
    assert await CommandSlurm().requeue({(5, 100)}) == Requeued(refused={(5, 100): says})
    for says in ("Job/step already completing or completed", "Job is pending execution"):
        stand_in("scontrol", f'echo "{says}" >&2; exit 1')
        assert await CommandSlurm().requeue({(5, 100)}) == Requeued()
    assert not (tmp_path / "scancel.log").exists()


async def test_what_was_requeued_is_known_though_slurm_is_gone_for_another(
    stand_in: StandIn, monkeypatch: pytest.MonkeyPatch
) -> None:
    stand_in("squeue", RUNNING)

    async def attempted(argv: tuple[str, ...]) -> Reply:
        if argv[-1] in gone:
            raise UnreachableError("SW-SLURM-DOWN", "scontrol gave no answer.", "Try again.")
        return Reply(0, "", "")

    monkeypatch.setattr(commands, "attempt", attempted)
    gone = {"5"}
    assert await CommandSlurm().requeue({(5, 100), (7, 200)}) == Requeued(frozenset({(7, 200)}))
    gone |= {"814_[5]"}
    with pytest.raises(UnreachableError, match="SW-SLURM-DOWN"):
        await CommandSlurm().requeue({(5, 100), (7, 200)})


async def test_nobody_is_asked_where_no_run_is_to_end(tmp_path: Path, stand_in: StandIn) -> None:
    stand_in("squeue", "exit 1")
    assert await CommandSlurm().requeue(()) == Requeued()
    assert not (tmp_path / "squeue.log").exists()


async def test_tasks_are_addressed_by_index(tmp_path: Path, stand_in: StandIn) -> None:
    for command in ("scontrol", "scancel"):
        stand_in(command, "")
    slurm = CommandSlurm()
    await slurm.requeue_hold(TASKS)
    await slurm.requeue_hold(815)
    await slurm.cancel(TASKS)
    assert noted(tmp_path, "scontrol") == [
        "scontrol requeuehold 814_[0-2,5]",
        "scontrol requeuehold 815",
    ]
    assert noted(tmp_path, "scancel") == ["scancel 814_[0-2,5]"]


@pytest.mark.parametrize(
    ("state", "held"), [("PENDING", "0-2,5"), ("RUNNING", "0-2"), ("COMPLETING", "0-2")]
)
async def test_only_what_has_not_started_is_held(
    tmp_path: Path, stand_in: StandIn, state: str, held: str
) -> None:
    rows = SQUEUE.replace("SPECIAL_EXIT", state).format(restarts=0, submit_s=1, other_submit_s=1)
    stand_in("squeue", rows)
    # Slurm refuses to delay what runs.
    stand_in("scontrol", '[ "$1" = hold ]')
    await CommandSlurm().hold(TASKS)
    assert noted(tmp_path, "scontrol") == [
        "scontrol update JobId=814_[0-2,5] StartTime=now+60",
        f"scontrol hold 814_[{held}]",
    ]


async def test_if_all_have_started_nothing_is_held(tmp_path: Path, stand_in: StandIn) -> None:
    rows = SQUEUE.replace("SPECIAL_EXIT", "RUNNING").format(
        restarts=0, submit_s=1, other_submit_s=1
    )
    stand_in("squeue", rows)
    stand_in("scontrol", "")
    await CommandSlurm().hold(Tasks(814, frozenset({5})))
    assert noted(tmp_path, "scontrol") == ["scontrol update JobId=814_[5] StartTime=now+60"]


async def test_a_list_of_tasks_is_changed_task_by_task(tmp_path: Path, stand_in: StandIn) -> None:
    stand_in("squeue", "echo '814_[5,9]'; echo 814_0; echo '814_[11-12]'\n")
    # It says of the last script's lines which it does not know: the marks.
    stand_in("scontrol", f"tac {tmp_path}/scontrol.log | sed '/scontrol/q' | grep ^x >&2")
    changed = JobChange(qos="slicewise_vision_borrowed")
    for _ in range(2):
        tasks = Tasks(814, frozenset({0, 1, 11, 12, 5, 9}))
        assert await CommandSlurm().update({tasks: changed, 815: changed}) == {}
        stand_in("squeue", "exit 1\n")
    asked = [line for line in noted(tmp_path, "squeue") if line]
    argv = "squeue --noheader --all --local --states=pending --jobs=814 --format=%i"
    assert asked == [argv, argv]
    said = [line for line in noted(tmp_path, "scontrol") if line.startswith("update")]
    assert [line.split()[1].removeprefix("JobId=") for line in said] == [
        *("814_[5,9,11-12]", "814_0,814_1", "815"),
        *("814_0,814_1,814_5,814_9,814_11,814_12", "815"),
    ]


# As sacct, it cuts with whatever it is told.
CUT = 'sed "s/|/$(echo "$*" | sed "s/.*--delimiter=\\([^ ]*\\).*/\\1/")/g"'
ALL_RUNS = (
    "--noheader --parsable2 --delimiter=SECRET --noconvert --allusers --duplicates {which} "
    "--starttime=1970-01-01T00:01:40 --endtime=now "
    "--state=RUNNING,REQUEUED,PREEMPTED,NODE_FAIL "
    "--format=JobIDRaw,JobID,User,Account,Partition,Start,End,State,TimelimitRaw,"
    "AllocTRES,ReqTRES,QOS"
)


async def test_runs_are_asked_for_by_state(tmp_path: Path, stand_in: StandIn) -> None:
    row = "7|7|alice|vision|gpu|150|200|COMPLETED|10|billing=5||normal"
    stand_in("sacct", f"echo '{row}' | {CUT}\n")
    (run,) = await CommandSlurm().runs(100)
    assert (run.start_s, run.end_s) == (150, 200)
    assert accounting_asked(tmp_path) == [f"sacct {ALL_RUNS.format(which='--allocations')}"]


async def test_history_is_asked_for_in_a_window(tmp_path: Path, stand_in: StandIn) -> None:
    """Also what waits and what never ran; a name with the separator in it costs its row alone."""
    head = "alice|vision|q|gpu|100|100"
    tail = "10|0|00:00:00|1|cpu=1,node=1|"
    stand_in(
        "sacct",
        f"{{ echo '7|7|{head}|150|200|COMPLETED|{tail}'; "
        f"echo '8|8|{head}|None|None|PENDING|{tail}'; }} | {CUT}; echo '9|9|x'\n",
    )
    ran, waits = await CommandSlurm().job_history(100, 200)
    assert (ran.job_id, ran.start_s, ran.requested) == (7, 150, {"cpu": "1", "node": "1"})
    assert (waits.job_id, waits.start_s, waits.time_limit_s) == (8, None, 600)
    (asked,) = accounting_asked(tmp_path)
    assert "--starttime=1970-01-01T00:01:40 --endtime=1970-01-01T00:03:20" in asked
    assert "--duplicates --allocations" in asked
    assert "--state" not in asked


def accounting_asked(tmp_path: Path) -> list[str]:
    return [
        re.sub("delimiter=x[0-9a-f]{32}x", "delimiter=SECRET", line)
        for line in noted(tmp_path, "sacct")
    ]


async def test_an_accounts_name_can_imitate_no_run(tmp_path: Path, stand_in: StandIn) -> None:
    imitated = "7|7|bob|nlp|gpu|150|200|COMPLETED|10|billing=5||normal"
    stand_in("sacct", f"printf '8|8|carol|' | {CUT}; echo 'c|d'; echo '{imitated}'\n")
    assert await CommandSlurm().runs(100) == ()


async def test_steps_are_asked_for_where_a_start_is_lost(tmp_path: Path, stand_in: StandIn) -> None:
    rows = "echo '{0}|{0}|a|v|gpu|Unknown|200|REQUEUED|10|billing=5||normal'\n"
    steps = "case $* in *--jobs=*) echo '8.batch|8.batch||v||150|201|FAILED||||';; esac\n"
    stand_in("sacct", f"{{ {rows.format(17)}{rows.format(8)}{steps} }} | {CUT}\n")
    (run,) = await CommandSlurm().runs(100)
    assert (run.job_id, run.start_s, run.end_s) == (8, 150, 200)
    asked = [ALL_RUNS.format(which=which) for which in ("--allocations", "--jobs=8,17")]
    assert accounting_asked(tmp_path) == [f"sacct {one}" for one in asked]


SDIAG = 'echo "sdiag output at Tue Nov 14 22:13:20 2023 ($(date +%s))"'
"""Its clock is this host's."""


async def test_release_makes_eligible_first(tmp_path: Path, stand_in: StandIn) -> None:
    stand_in("sdiag", SDIAG)
    stand_in("squeue", SQUEUE.format(restarts=0, submit_s=2**40, other_submit_s=2**40))
    stand_in("scontrol", "")
    await CommandSlurm().release(TASKS)
    assert noted(tmp_path, "scontrol") == [
        "scontrol ",
        "update JobId=814_[0-2,5] StartTime=now",
        "release 814_[0-2,5]",
    ]


async def test_release_waits_for_the_second_after_the_last_run(
    tmp_path: Path, stand_in: StandIn
) -> None:
    stand_in("sdiag", SDIAG)
    stand_in("scontrol", f"date +%s >>{tmp_path}/released")
    ended_s = int(time.time()) + 1
    stand_in("squeue", SQUEUE.format(restarts=3, submit_s=ended_s, other_submit_s=100))
    await CommandSlurm().release(TASKS)
    assert int((tmp_path / "released").read_text()) > ended_s


async def test_release_asks_nothing_where_the_last_end_is_known(
    tmp_path: Path, stand_in: StandIn
) -> None:
    stand_in("sdiag", SDIAG)
    stand_in("scontrol", f"date +%s >>{tmp_path}/released")
    stand_in("squeue", "exit 1")
    ended_s = int(time.time())
    await CommandSlurm().release(TASKS, ended_s=ended_s)
    assert int((tmp_path / "released").read_text()) > ended_s
    assert not (tmp_path / "squeue.log").exists()


async def test_release_does_not_wait_for_other_tasks(
    stand_in: StandIn, monkeypatch: pytest.MonkeyPatch
) -> None:
    stand_in("sdiag", SDIAG)
    stand_in("scontrol", "")
    stand_in("squeue", SQUEUE.format(restarts=3, submit_s=100, other_submit_s=2**40))
    waits_s: list[float] = []

    async def wait(seconds: float) -> None:
        waits_s.append(seconds)

    monkeypatch.setattr("slicewise.cluster.slurm.commands.asyncio.sleep", wait)
    await CommandSlurm().release(TASKS)
    assert waits_s == [0]


async def test_separators_are_secret_and_never_the_same(tmp_path: Path, stand_in: StandIn) -> None:
    stand_in("squeue", f'[ -z "$SQUEUE_FORMAT2" ] || echo "$SQUEUE_FORMAT2" >>{tmp_path}/formats\n')
    for _ in range(2):
        assert await CommandSlurm().jobs() == ()
    first, second = (tmp_path / "formats").read_text().split()
    secret = first.rpartition(":")[2]
    assert len(secret) >= 32
    assert secret not in second
    assert not any(secret in line for line in noted(tmp_path, "squeue"))


BESIDE = """
case "$*" in *bad*) echo no such QOS >&2; exit 1; esac
: >{folder}/beside.$$
looks=0
until [ $(ls {folder}/beside.* | wc -l) -ge 8 ]; do
  looks=$((looks + 1))
  if [ $looks -ge 600 ] || [ -e {folder}/alone ]; then touch {folder}/alone; echo alone; exit 1; fi
  sleep 0.1
done
"""
"""Each waits until eight are there."""


async def test_changes_are_made_side_by_side_and_a_failure_stops_no_other(
    tmp_path: Path, stand_in: StandIn, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("slicewise.cluster.slurm.commands.CHANGE_DEADLINE_S", 120.0)
    stand_in("sacctmgr", BESIDE.format(folder=tmp_path))
    changes = [("bad",), *(("add", "qos", str(n)) for n in range(8))]
    assert await CommandSlurm().sacctmgr(changes) == {("bad",): "no such QOS"}
    assert len(noted(tmp_path, "sacctmgr")) == 9


async def test_modifications_are_lines_of_few_processes_and_a_refused_one_is_found(
    tmp_path: Path, stand_in: StandIn
) -> None:
    stand_in("sacctmgr", "")
    program = tmp_path / "sacctmgr"
    # Of one process: what it is asked, and whether that is refused.
    log = tmp_path / "log"
    program.write_text(
        "#!/bin/sh\n"
        'if [ $# -gt 1 ]; then asked="$*"; else asked=$(cat); fi\n'
        f'printf "%s\\n\\n" "$asked" >>{log}\n'
        'case "$asked" in *bad*) echo no such QOS >&2; exit 1; esac\n'
    )
    changes = [("modify", "qos", "where", f"name=q{n}", "set", "preempt=") for n in range(120)]
    assert await CommandSlurm().sacctmgr(changes) == {}
    processes = log.read_text().strip().split("\n\n")
    assert len(processes) == 3
    asked = [line for one in processes for line in one.splitlines()]
    assert sorted(asked) == sorted(map(" ".join, changes))
    changes[70] = ("modify", "qos", "where", "name=bad", "set", "preempt=")
    assert await CommandSlurm().sacctmgr(changes) == {changes[70]: "no such QOS"}
    assert len(log.read_text().strip().split("\n\n")) == 3 + 3 + 50


async def test_after_limits_were_set_those_qos_are_shown_and_no_others(
    tmp_path: Path, stand_in: StandIn
) -> None:
    row = "%s|billing=5|||||cluster|||\\n"
    stand_in("sacctmgr", f"case \"$*\" in *show*) printf '{row}' a b other;; esac\n")
    changes = [
        ("add", "qos", "b", "grptres=billing=5"),
        ("modify", "qos", "where", "name=a", "set", "grptres=billing=5"),
        ("modify", "account", "where", "name=vision", "cluster=c", "set", "qos+=b"),
    ]
    changed = await CommandSlurm().set_limits(changes)
    assert changed.refused == {}
    assert [(one.name, one.grp_tres) for one in changed.qos] == [
        ("a", {"billing": 5}),
        ("b", {"billing": 5}),
    ]
    (shown,) = (line for line in noted(tmp_path, "sacctmgr") if "show" in line)
    assert "where name=a,b format=" in shown
    assert await CommandSlurm().set_limits(changes[2:]) == Changed({})
    assert len([line for line in noted(tmp_path, "sacctmgr") if "show" in line]) == 1


async def test_of_many_qos_all_are_shown(tmp_path: Path, stand_in: StandIn) -> None:
    """Their names may be longer than an argument."""
    stand_in("sacctmgr", "case \"$*\" in *show*) printf 'q7|||||||||\\nother|||||||||\\n';; esac\n")
    changes = [("modify", "qos", "where", f"name=q{n}", "set", "preempt=") for n in range(101)]
    changed = await CommandSlurm().set_limits(changes)
    assert [one.name for one in changed.qos] == ["q7"]
    (shown,) = (line for line in noted(tmp_path, "sacctmgr") if "show" in line)
    assert "where" not in shown


async def test_many_modifications_have_more_time_than_one_and_may_be_made_in_part(
    stand_in: StandIn, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("slicewise.cluster.slurm.commands.CHANGE_DEADLINE_S", 0.05)
    monkeypatch.setattr("slicewise.cluster.slurm.commands._LINE_S", 60.0)
    changes = [("modify", "qos", "where", f"name=q{n}", "set", "preempt=") for n in range(10)]
    stand_in("sacctmgr", "sleep 0.3\n")
    assert await CommandSlurm().sacctmgr(changes) == {}
    monkeypatch.setattr("slicewise.cluster.slurm.commands._LINE_S", 0.2)
    stand_in("sacctmgr", "exec sleep 600\n")
    with pytest.raises(UnreachableError, match=r"within 0.45 s.*Some of 2 changes may have"):
        await CommandSlurm().sacctmgr(changes[:2])


@pytest.mark.parametrize("name", ["a b", "it's", 'say "x"', "n" * 4000, "x\x15y", "a\x7f", "ö", ""])
async def test_what_sacctmgr_would_cut_is_no_line(
    tmp_path: Path, stand_in: StandIn, name: str
) -> None:
    """By readline, too: "modify \x15delete ..." deletes."""
    stand_in("sacctmgr", "[ $# -gt 1 ]\n")
    change = ("modify", "account", "where", name, "set", "qos=")
    assert await CommandSlurm().sacctmgr([change, change]) == {}
    assert len(noted(tmp_path, "sacctmgr")) == 2


async def test_a_script_that_slurm_does_not_hand_out_is_no_empty_script(
    stand_in: StandIn,
) -> None:
    # As scontrol 22.05 and 25.11 do it.
    stand_in("scontrol", "echo 'job script retrieval failed: Invalid job id specified' >&2\n")
    with pytest.raises(OutsideError, match="Invalid job id specified"):
        await CommandSlurm().batch_script(999)


# Job N has core N. What was asked on the standard input is in the log.
SHOWN = """grep '^show ' {log} | while read -r line; do
  printf 'scontrol: '{echo}
  number=${{line#show job }}
  case $line in
    "show job 6") echo 'slurm_load_jobs error: Invalid job id specified' >&2 ;;
    "show job "*) echo "JobId=$number"; echo "     Nodes=gpu01 CPU_IDs=$number Mem=1"; echo ;;
    *) echo "${{line#show hostnames }}" ;;
  esac
done
"""


@pytest.mark.parametrize("echo", ['; echo "$line"', ""], ids=["readline", "without"])
async def test_each_job_gets_its_own_answer_though_one_has_ended(
    tmp_path: Path, stand_in: StandIn, echo: str
) -> None:
    stand_in("scontrol", SHOWN.format(log=tmp_path / "scontrol.log", echo=echo))
    stand_in("sinfo", "echo gpu01 1")
    found = await CommandSlurm().cores([running(number) for number in (5, 6, 7)])
    assert found == {5: {"gpu01": {5}}, 6: {}, 7: {"gpu01": {7}}}


JOBS = """for number in $(seq 5 110); do
  echo "JobId=$number JobName=a"
  echo "     Nodes=gpu01 CPU_IDs=1 Mem=1 GRES=gpu:1g.10gb:1(IDX:$number)"
done
"""


async def test_the_gpus_of_many_jobs_are_asked_for_at_once(
    tmp_path: Path, stand_in: StandIn
) -> None:
    stand_in("scontrol", JOBS)
    found = await CommandSlurm().devices([running(number) for number in range(101)])
    assert found == {n: {"gpu01": {n}} if n >= 5 else {} for n in range(101)}
    assert noted(tmp_path, "scontrol") == ["scontrol -d show job"]


# A job that runs and asked for GPUs of any type, and one that waits and does.
UNTYPED = """row() {
  echo "$SQUEUE_FORMAT2" | sed -e "s/JobId:/$1/" -e "s/State:/$2/" -e "s/StartTime:/$3/" \\
    -e 's/tres-alloc:/cpu=1,node=1,gres\\/gpu=1/' -e 's/tres-per-node:/gres:gpu:1/' \\
    -e 's/UserId:/1000/' -e 's/PriorityLong:/1/' -e 's/RestartCnt:/0/' -e 's/TimeLimit:/10:00/' \\
    -e 's/[A-Za-z_-]*Time:/N\\/A/g' -e 's/ArrayTaskId:/N\\/A/' -e 's/NodeList://' -e 's/,//g'
}
row 5 RUNNING 100
row 6 PENDING Unknown
"""
GIVEN = """grep '^show ' {log} | tail -n 2 | while read -r line; do
  case $line in
    "show job "*) echo "JobId=5 JobName=a"; echo "   JOB_GRES=gpu:3g.40gb:1"; echo ;;
    *) echo "${{line#show hostnames }}" ;;
  esac
done
"""


async def test_what_a_run_was_given_is_asked_for_once_where_nothing_else_names_the_type(
    tmp_path: Path, stand_in: StandIn
) -> None:
    stand_in("squeue", UNTYPED)
    stand_in("scontrol", GIVEN.format(log=tmp_path / "scontrol.log"))
    slurm = CommandSlurm()
    for _ in range(2):
        runs, waits = await slurm.jobs()
        assert (dict(runs.gpus), runs.untyped_gpus) == ({"3g.40gb": 1}, 0)
        assert (dict(waits.gpus), waits.untyped_gpus) == ({}, 1)
    assert noted(tmp_path, "scontrol").count("show job 5") == 1
    assert "show job 6" not in noted(tmp_path, "scontrol")


async def test_what_slurm_did_not_say_of_a_run_is_asked_again(
    tmp_path: Path, stand_in: StandIn
) -> None:
    stand_in("squeue", UNTYPED)
    stand_in("scontrol", "exit 1")
    slurm = CommandSlurm()
    assert [dict(job.gpus) for job in await slurm.jobs()] == [{}, {}]
    stand_in("scontrol", GIVEN.format(log=tmp_path / "scontrol.log"))
    for _ in range(2):
        assert [dict(job.gpus) for job in await slurm.jobs()] == [{"3g.40gb": 1}, {}]
    assert noted(tmp_path, "scontrol").count("show job 5") == 2


# Behind gpu01's true OS its root has written whole records: of gpu02, that it is down and has other
# GPUs, of a node that there is not, and of what GPUs can be cut into.
NODES = """node() {
  echo "NodeName=$1 Arch=x86_64 CoresPerSocket=1"
  echo "   Gres=gpu:1g.10gb:7"
  echo "   NodeAddr=$1"
  printf '   OS=Linux%b\\n' "$2"
  echo "   State=IDLE ThreadsPerCore=1 Weight=1"
  printf '   Partitions=gpu\\n\\n'
}
fake() {
  printf '\\\\n\\\\nNodeName=%s Gres=gpu:7g.80gb:9\\\\n   State=DOWN\\\\n   Partitions=gpu' $1
}
forged="$(fake gpu02)$(fake ghost)$(fake slicewise-shapes)"
case "$*" in
  "--all show node -d") node gpu01 "$forged"; node gpu02; exit ;;
esac
sed 1d {log} | grep '^show ' | while read -r line; do
  printf 'scontrol: '
  case $line in
    "show node gpu02") node gpu02 ;;
    "show node "*) echo "Node ${line#show node } not found" >&2 ;;
    *) echo "${line#show hostnames }" ;;
  esac
done
"""


async def test_a_node_s_root_forges_no_other_node(tmp_path: Path, stand_in: StandIn) -> None:
    stand_in("scontrol", NODES.replace("{log}", f"{tmp_path}/scontrol.log"))
    stand_in("sinfo", "for i in 1 2; do echo gpu0$i gpu gpu:1g.10gb:7 gpu0$i 1; done")
    told: list[Unread] = []
    nodes = {node.name: node for node in await CommandSlurm(told.append).nodes()}
    assert nodes.keys() == {"gpu01", "gpu02"}
    assert nodes["gpu02"].states == {"IDLE"}
    assert nodes["gpu02"].address == "gpu02"
    assert [node.gpus for node in nodes.values()] == [{"1g.10gb": 7}] * 2
    assert {one.name for one in told} == {"gpu02", "ghost", "slicewise-shapes"}


async def test_where_nodes_are_is_asked_again_only_if_it_may_be_another(
    tmp_path: Path, stand_in: StandIn
) -> None:
    """At each look it was: three questions to slurmctld for one."""

    def show(gpus: int, state: str) -> None:
        record = f"NodeName=gpu01 CoresPerSocket=1\\n   Gres=gpu:a:{gpus}\\n   State={state}"
        stand_in("scontrol", f"printf '{record} Weight=1\\n   Partitions=gpu\\n\\n'")
        stand_in("sinfo", f"echo gpu01 gpu gpu:a:{gpus} gpu01 1")

    slurm = CommandSlurm()
    show(1, "IDLE")
    (before,) = await slurm.nodes()
    show(1, "MIXED")
    (same,) = await slurm.nodes()
    assert (before.states, same.states, same.gpus) == ({"IDLE"}, {"MIXED"}, {"a": 1})
    assert len(noted(tmp_path, "sinfo")) == 1
    show(2, "MIXED")
    (cut_anew,) = await slurm.nodes()
    assert cut_anew.gpus == {"a": 2}
    assert len(noted(tmp_path, "sinfo")) == 2


async def test_forged_words_keep_a_node_that_is_gone_for_30_s_only(
    tmp_path: Path, stand_in: StandIn
) -> None:
    """The root of gpu01 says of it what Slurm said: no word has changed."""
    now_s = 100.0
    record = "NodeName=gpu02 NodeAddr=gpu02 Arch=x\\n   Gres=gpu:a:1\\n   State=IDLE\\n"
    stand_in("scontrol", f"printf 'NodeName=gpu01 Arch=x\\n\\n{record}'")
    stand_in("sinfo", "for i in 1 2; do echo gpu0$i gpu gpu:a:1 gpu0$i 1; done")
    reader = NodeReader(lambda _: None, lambda: now_s)
    assert [node.name for node in await reader.read()] == ["gpu01", "gpu02"]
    stand_in("sinfo", "echo gpu01 gpu gpu:a:1 gpu01 1")
    stand_in(
        "scontrol",
        f"""if [ "$1" = --all ]; then printf 'NodeName=gpu01 OS=x\\n\\n{record}'
else sed -n 's/^show hostnames //p' {tmp_path}/scontrol.log; fi""",
    )
    now_s += 120
    assert [node.name for node in await reader.read()] == ["gpu01"]
    assert len(noted(tmp_path, "sinfo")) == 2


async def test_waiting_tasks_are_listed_only_where_one_may_be_missing(
    tmp_path: Path, stand_in: StandIn
) -> None:
    """Slurm sends all jobs each time. ``squeue -r`` leaves out the last of ``0-12:2``."""

    def show(listed: str, *tasks: tuple[int, int]) -> None:
        rows = "".join(_task_row(job_id, task) for job_id, task in tasks)
        stand_in(
            "squeue",
            f'case "$*" in *--format=%i*) echo "{listed}"; exit 0; esac\n'
            f"for set_to in {rows}; do "
            'echo "$SQUEUE_FORMAT2" | sed -e "$set_to" -e "s/,//g"; done',
        )

    async def look(slurm: CommandSlurm) -> tuple[int, Sequence[int]]:
        """How many squeues, and which tasks are untouched."""
        (tmp_path / "squeue.log").write_text("", encoding="utf-8")
        jobs = await slurm.jobs()
        found = sorted(*(job.untouched for job in jobs if job.job_id == 5))
        return len(noted(tmp_path, "squeue")), found

    slurm = CommandSlurm(lambda _: None)
    show("", (5, 0), (5, 1), (5, 2))
    assert await look(slurm) == (1, [0, 1, 2])
    even = [(5, index) for index in range(0, 11, 2)]
    show("5_[0-12:2]", *even)
    assert await look(slurm) == (3, [0, 2, 4, 6, 8, 10, 12])
    assert await look(slurm) == (1, [0, 2, 4, 6, 8, 10, 12])
    # What was missing has an id of its own by now: it is listed anew, and then remembered.
    show("5_[0,2,4,6,8,10]", *even, (6, 12))
    assert await look(slurm) == (3, [0, 2, 4, 6, 8, 10])
    assert await look(slurm) == (1, [0, 2, 4, 6, 8, 10])


def _squeue(listed: str, came: str, before: str, later: str) -> str:
    """Shows the rows ``before``, and ``later`` ones, too, once what waits was listed."""
    return f"""case "$*" in *--format=%i*) {listed}; touch {came}; exit 0; esac
for set_to in {before}; do echo "$SQUEUE_FORMAT2" | sed -e "$set_to" -e "s/,//g"; done
[ -e {came} ] || exit 0
for set_to in {later}; do echo "$SQUEUE_FORMAT2" | sed -e "$set_to" -e "s/,//g"; done
"""


async def test_a_task_that_starts_before_waiting_ones_are_listed_is_not_missed(
    tmp_path: Path, stand_in: StandIn
) -> None:
    """A missing job looks ended. Task 12 starts between the first rows and the list."""
    waiting = "".join(_task_row(5, index) for index in range(0, 11, 2))
    listed, came = 'echo "5_[0-10:2]"', f"{tmp_path}/came"
    stand_in("squeue", _squeue(listed, came, waiting, _task_row(6, 12)))
    slurm = CommandSlurm(lambda _: None)
    for _ in range(2):
        found = {job.job_id: (job.task_index, sorted(job.untouched)) for job in await slurm.jobs()}
        assert found == {5: (None, [0, 2, 4, 6, 8, 10]), 6: (12, [])}


async def test_an_array_that_comes_behind_the_list_is_listed_at_the_next_look(
    tmp_path: Path, stand_in: StandIn
) -> None:
    """What its rows leave out would else be missing for as long as they stay the same."""
    even = range(0, 11, 2)
    first = "".join(_task_row(4, index).replace("ArrayJobId:/5", "ArrayJobId:/4") for index in even)
    came = f"{tmp_path}/came"
    listed = f'echo "4_[0-10:2]"; [ ! -e {came} ] || echo "5_[0-12:2]"'
    later = "".join(_task_row(5, index) for index in even)
    stand_in("squeue", _squeue(listed, came, first, later))
    slurm = CommandSlurm(lambda _: None)
    await slurm.jobs()
    found = {job.job_id: sorted(job.untouched) for job in await slurm.jobs()}
    assert found == {4: [*even], 5: [*even, 12]}


def _task_row(job_id: int, task: int) -> str:
    """A word of sed that fills in a waiting task of array 5."""
    values = {"JobId": job_id, "ArrayTaskId": task, "ArrayJobId": 5, "PriorityLong": 1}
    values |= {"State": "PENDING"}  # type: ignore[dict-item]
    return "'" + ";".join(f"s/{name}:/{value}/" for name, value in values.items()) + "' "


@pytest.mark.parametrize(
    ("argv", "stdin", "requests"),
    [
        (("squeue", "--array"), "", 2),
        (("squeue", "--steps", "--format=%i"), "", 1),
        (("scontrol", "--all", "show", "node", "-d"), "", 2),
        (("scontrol",), "show step 7.0\nshow hostnames x\nshow step 7.1\nshow hostnames x\n", 2),
        (("scontrol",), "update JobId=7 StartTime=now\nrelease 7\n", 0),
        (("scontrol", "hold", "7"), "", 0),
        (("sacct", "--allocations"), "", 0),
        (("scancel", "7"), "", 0),
    ],
)
def test_only_questions_to_slurmctld_are_counted(
    argv: tuple[str, ...], stdin: str, requests: int
) -> None:
    asked = RequestCount()
    asked.count(argv, stdin)
    assert asked.total == requests


ARCHITECTURE = """
echo 'NodeName=gpu01 Arch=x NodeAddr=slow.example GresUsed=gpu:1g.10gb:999,gpu:pad:1 Weight=999999'
echo '   Gres=gpu:1g.10gb:7'
echo '   GresUsed=gpu:1g.10gb:2(IDX:0-1)'
echo '   NodeAddr=10.0.0.1 NodeHostName=gpu01 Version=22.05.8'
"""


async def test_a_node_s_root_moves_it_nowhere_and_takes_nothing_from_other_nodes(
    stand_in: StandIn,
) -> None:
    """Its architecture stands first. The launcher would look for that name at each turn, and what
    is free of a type is summed up over all nodes. One weight that is too large stops all weighing.
    """
    stand_in("scontrol", ARCHITECTURE)
    stand_in("sinfo", "echo gpu01 gpu gpu:1g.10gb:7 10.0.0.1 5")
    (node,) = await CommandSlurm().nodes()
    assert node.address == "10.0.0.1"
    assert node.gpus_allotted == {"1g.10gb": 7}
    assert node.weight == 5


MANY = """
printf 'NodeName=gpu01 Arch=x\\n   OS=Linux'
yes "$(printf '\\n\\nNodeName=%s State=DOWN Gres=gpu:a:1' {name})" | head -n 600000
printf '\\n\\nNodeName=gpu02 Arch=x\\n   State=IDLE\\n'
"""


@pytest.mark.parametrize("name", ["gpu01", "ghost"])
async def test_a_node_s_root_makes_no_look_long(
    stand_in: StandIn, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By records without end in its OS: each that is read takes 15 microseconds of every look."""
    read: list[str] = []
    fields = parse._block
    monkeypatch.setattr(parse, "_block", lambda text: read.append(text) or fields(text))
    stand_in("scontrol", f'[ "$1" = -d ] || {{ {MANY.format(name=name)} }}')
    stand_in("sinfo", "for i in 1 2; do echo gpu0$i gpu gpu:a:1 gpu0$i 1; done")
    nodes = await CommandSlurm(lambda _: None).nodes()
    assert "gpu02" in {node.name for node in nodes}
    # Two of each name that is known, and those of names that are not; then again one by one.
    assert 2 <= len(read) <= 2 * (2 * 2 + parse.MOST_STRANGERS)


# What gpu01's root says of gpu02 is behind what Slurm says of it.
THREADS = """if [ "$*" = "show node" ]; then
  printf 'NodeName=gpu02 Arch=x\\n   State=IDLE ThreadsPerCore=1\\n\\n'
  printf 'NodeName=gpu03 Arch=x\\n   OS=Linux\\n\\n'
  printf 'NodeName=gpu02\\n   State=IDLE ThreadsPerCore=4\\n\\n'
else
  echo '     Nodes=gpu02 CPU_IDs=4-5 Mem=20 GRES='
  sed -n 's/^show hostnames //p' {log}
fi
"""


async def test_a_node_s_root_gives_no_other_node_threads(tmp_path: Path, stand_in: StandIn) -> None:
    """By them cores are reckoned."""
    stand_in("scontrol", THREADS.replace("{log}", f"{tmp_path}/scontrol.log"))
    stand_in("sinfo", "echo gpu02 1; echo gpu03 1")
    assert await CommandSlurm().cores([running(9)]) == {9: {"gpu02": {4, 5}}}


ONE_MORE = """case "$*" in
  "--all show node -d") printf 'NodeName=gpu01 Gres=gpu:a:1\\n\\nNodeName=lone Gres=gpu:b:1\\n' ;;
  *) mark=$(sed -n 's/^show hostnames //p' {log})
    printf 'NodeName=lone Gres=gpu:b:1\\n\\n%s\\n' "$mark" ;;
esac
"""


async def test_a_node_in_no_partition_is_one_nevertheless(
    tmp_path: Path, stand_in: StandIn
) -> None:
    stand_in("scontrol", ONE_MORE.replace("{log}", f"{tmp_path}/scontrol.log"))
    stand_in("sinfo", "echo gpu01 gpu gpu:a:1 gpu01 1; echo gpu01 all gpu:a:1 gpu01 1")
    one, other = await CommandSlurm().nodes()
    assert (one.name, one.partitions, one.gpus) == ("gpu01", {"gpu", "all"}, {"a": 1})
    assert (other.name, other.partitions, other.gpus) == ("lone", frozenset(), {"b": 1})


# As sacctmgr does it: rows in the columns that are asked for, none of them twice, by arguments or
# by stdin, where it prints prompts, too. alice coordinates vision, and chose the names behind hers.
SACCTMGR = """#!{python}
import re, sys
asked = " ".join(sys.argv[1:]) or ""
if "format=" not in asked:
    asked = sys.stdin.readline()
    print("sacctmgr: " + asked, end="")
shown = dict.fromkeys(re.search("format=([^ \\n]*)", asked)[1].split(","))
columns = [one.partition("%")[0] for one in shown]
row = "c|nlp|alice||nlp||||"
for number, account, user in (
    (1, "nlp", ""),
    (2, "vision", "alice"),
    (3, "vision", "u\\n" + row + "\\ny"),
    (4, "x\\n" + row + "\\nc|y", ""),
):
    names = {{"Cluster": "c", "ID": str(number), "Account": account, "User": user, "QOS": "normal"}}
    print("|".join(names.get(column, "") for column in columns))
"""


async def test_who_names_an_account_forges_no_membership(tmp_path: Path, stand_in: StandIn) -> None:
    stand_in("scontrol", "echo 'ClusterName = c'\n")
    stand_in("sacctmgr", "")
    (tmp_path / "sacctmgr").write_text(SACCTMGR.format(python=sys.executable), encoding="utf-8")
    found = await CommandSlurm().associations()
    assert [(row.account, row.user) for row in found] == [("nlp", ""), ("vision", "alice")]


NAMES = ("nlp\n", "\nnlp", "nlp\nnlp", "c|nlp\n", "\nc|nlp|", "nlp|c\n", "nlp\nc", "c\nc|c\nc")


@pytest.mark.parametrize("chosen", ["Account", "User"])
@pytest.mark.parametrize("name", NAMES)
def test_a_line_break_in_a_name_leaves_no_row(chosen: str, name: str) -> None:
    """Not the head of its row, nor what stands behind the break: in any order of the marks."""
    for _ in range(100):
        columns = secret_columns(ASSOCIATION_FIELDS)
        true = {"Cluster": "c", "ID": "7", "Account": "vision", "User": "u", chosen: name}
        text = "|".join(true.get(column, "") for column in columns) + "\n"
        assert parse_associations(text, text, columns, lambda _: None) == ()


async def test_nobody_sees_between_which_marks_columns_are_asked_for(
    tmp_path: Path, stand_in: StandIn
) -> None:
    stand_in("scontrol", "echo 'ClusterName = c'\n")
    stand_in("sacctmgr", "")
    await CommandSlurm().associations()
    asked = noted(tmp_path, "sacctmgr")
    assert not [line for line in asked if line.startswith("sacctmgr") and "format" in line]
    assert len([line for line in asked if line.startswith("show assoc where cluster=c")]) == 2
    first, second = (secret_columns(ASSOCIATION_FIELDS) for _ in range(2))
    assert first != second
    assert set(first) == {*ASSOCIATION_FIELDS, "ID"}
    assert first[33:-32] == ASSOCIATION_FIELDS[1:]
