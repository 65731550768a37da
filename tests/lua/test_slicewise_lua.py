"""slicewise.lua under real Lua 5.1, against a real unix socket and a stub of Slurm's table."""

import json
import socket
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from cluster.errors import InvalidInputError
from cluster.gres import GpuRequest, parse_gpu_requests
from cluster.service import directives_of_script

ROOT = Path(__file__).resolve().parents[2]
MODULE = ROOT / "slurm_plugin" / "slicewise.lua"
RUN_CASE = Path(__file__).with_name("run_case.lua")
TAG = "slicewise:1 token=ab12 tenant=vision"
SERVICE_TAG = f"{TAG} service=bert"
ALICE, SLURM_UID, ROOT_UID = 61001, 64030, 0
PARTITIONS = {"cpu": {"flag_default": 0}, "gpu": {"flag_default": 1}}
SERVICE_SCRIPT = "#!/bin/bash\n#SBATCH --hold\n#SLICEWISE name=bert\n\nsrun x\n#SLICEWISE late=1\n"
SUCCESS, DENIED, POLICY = 0, 2002, 2050

Reply = Callable[[bytes], bytes | None]


class Daemon:
    """Listens as the daemon does; answers with what ``reply`` says, None is silence."""

    def __init__(self, path: Path, reply: Reply) -> None:
        self.questions: list[dict[str, Any]] = []
        self._reply = reply
        self._listener = socket.socket(socket.AF_UNIX)
        self._listener.bind(str(path))
        self._listener.listen()
        self._open: list[socket.socket] = []
        self._thread = threading.Thread(target=self._serve, daemon=True)
        self._thread.start()

    def _serve(self) -> None:
        while True:
            try:
                connection, _ = self._listener.accept()
            except OSError:
                return
            self._open.append(connection)
            line = connection.makefile("rb").readline()
            self.questions.append(json.loads(line.decode("utf-8", "replace")))
            answer = self._reply(line)
            if answer is not None:
                connection.sendall(answer)

    def close(self) -> None:
        self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        for connection in self._open:
            connection.close()


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "admission.sock"


@pytest.fixture
def listening(path: Path) -> Iterator[Callable[[Reply], Daemon]]:
    started: list[Daemon] = []

    def start(reply: Reply) -> Daemon:
        started.append(Daemon(path, reply))
        return started[-1]

    yield start
    for daemon in started:
        daemon.close()


def answering(**answer: object) -> Reply:
    return lambda _: json.dumps({"v": 1, **answer}).encode() + b"\n"


def run_case(path: Path, call: str = "job_submit", **case: Any) -> dict[str, Any]:
    options = {"socket": str(path), "slurm_uid": SLURM_UID, "timeout_s": 0.5}
    options |= case.pop("configure", {})
    whole = {"module": str(MODULE), "call": call, "configure": options, "uid": ALICE, **case}
    whole.setdefault("part_list", PARTITIONS)
    done = subprocess.run(
        ["lua5.1", str(RUN_CASE)],
        input=json.dumps(whole, ensure_ascii=False).encode(),
        capture_output=True,
        check=False,
        timeout=10,
    )
    assert done.returncode == 0, done.stderr.decode()
    result: dict[str, Any] = json.loads(done.stdout)
    assert not result["read_assoc_qos"]
    return result


GPU_JOB = {"account": "vision", "tres_per_node": "gres:gpu:1g.10gb:1", "name": "j"}


@pytest.mark.parametrize(
    "job_desc", [{"account": "vision", "script": "#!/bin/sh\ntrue\n"}, {"gres": "gres:license:1"}]
)
def test_a_job_without_gpu_asks_nobody(path: Path, listening: Any, job_desc: Any) -> None:
    daemon = listening(answering(action="refuse", code="SW-X", message="no"))
    assert run_case(path, job_desc=job_desc)["code"] == SUCCESS
    assert daemon.questions == []


def test_the_question_holds_what_slurm_says(path: Path, listening: Any) -> None:
    daemon = listening(answering(action="pass"))
    job_desc = {
        **GPU_JOB,
        "tres_per_task": "gres/gpu:1g.10gb=1",
        "qos": "normal",
        "array_inx": "0-3",
        "time_limit": 60,
        "default_account": "not asked for",
        "script": SERVICE_SCRIPT,
    }
    run_case(path, job_desc=job_desc)
    assert daemon.questions == [
        {
            "v": 1,
            "op": "submit",
            "uid": ALICE,
            "account": "vision",
            "partition": "gpu",
            "qos": "normal",
            "name": "j",
            "gres": "gres:gpu:1g.10gb:1",
            "tres_per_task": "gres/gpu:1g.10gb=1",
            "array": "0-3",
            "time_limit_min": 60,
            "directives": ["#SLICEWISE name=bert"],
        }
    ]


def test_unset_numbers_and_accounts_are_left_out(path: Path, listening: Any) -> None:
    daemon = listening(answering(action="pass"))
    job_desc = {"gres": "gpu:2", "default_account": "nlp", "time_limit": 4294967294}
    run_case(path, job_desc=job_desc)
    (question,) = daemon.questions
    assert question["default_account"] == "nlp"
    assert question.keys().isdisjoint({"account", "time_limit_min", "directives"})


def test_hostile_text_arrives_as_one_line(path: Path, listening: Any) -> None:
    daemon = listening(answering(action="pass"))
    name = 'a"\n\\\x00%s]]; os.execute("x") é'
    run_case(path, job_desc={**GPU_JOB, "name": name})
    assert daemon.questions[0]["name"] == name


def test_admit_sets_the_fields(path: Path, listening: Any) -> None:
    listening(
        answering(
            action="admit",
            gres="gpu:1g.10gb:1",
            qos="slicewise_vision",
            site_factor=700,
            tag=TAG,
            hold=True,
        )
    )
    result = run_case(path, job_desc={**GPU_JOB, "admin_comment": "site text"})
    assert result["code"] == SUCCESS
    assert result["job_desc"]["gres"] == "gpu:1g.10gb:1"
    assert result["job_desc"]["qos"] == "slicewise_vision"
    assert result["job_desc"]["site_factor"] == 700
    assert result["job_desc"]["admin_comment"] == f"site text {TAG}"
    assert result["job_desc"]["priority"] == 0


def test_admit_leaves_other_fields_alone(path: Path, listening: Any) -> None:
    listening(answering(action="admit", qos="slicewise_vision", tag=TAG))
    result = run_case(path, job_desc=GPU_JOB)
    assert result["job_desc"] == {**GPU_JOB, "qos": "slicewise_vision", "admin_comment": TAG}


REFUSAL = {"action": "refuse", "code": "SW-QUOTA-NONE", "message": "No 100%s.", "hint": "Ask."}


@pytest.mark.parametrize(("code", "rc"), [("SW-QUOTA-NONE", POLICY), ("SW-SERVICE", DENIED)])
def test_a_refusal_is_told(path: Path, listening: Any, code: str, rc: int) -> None:
    listening(answering(**{**REFUSAL, "code": code}))
    result = run_case(path, job_desc=GPU_JOB)
    assert result["code"] == rc
    assert result["told"].splitlines() == ["No 100%s.", "Ask.", code]


def test_advise_tells_but_never_refuses(path: Path, listening: Any) -> None:
    listening(answering(**REFUSAL))
    result = run_case(path, job_desc=GPU_JOB, configure={"mode": "advise"})
    assert result["code"] == SUCCESS
    assert "SW-QUOTA-NONE" in result["told"]


@pytest.mark.parametrize("answer", [REFUSAL, {"action": "admit", "qos": "q", "tag": TAG}])
def test_observe_changes_and_tells_nothing(path: Path, listening: Any, answer: Any) -> None:
    listening(answering(**answer))
    result = run_case(path, job_desc=GPU_JOB, configure={"mode": "observe"})
    assert (result["code"], result["told"]) == (SUCCESS, "")
    assert result["job_desc"] == GPU_JOB
    assert f"would {answer['action']}" in result["logged"]


@pytest.mark.parametrize(
    ("said", "logged"),
    [({"code": "SW-X"}, "would refuse SW-X"), ({"tag": TAG}, "would admit"), ({}, "would pass")],
)
def test_a_daemon_that_observes_lets_pass(
    path: Path, listening: Any, said: Any, logged: str
) -> None:
    listening(answering(action="pass", **said))
    result = run_case(path, job_desc=GPU_JOB, configure={"mode": "observe"})
    assert logged in result["logged"]
    enforced = run_case(path, job_desc=GPU_JOB, configure={"mode": "enforce"})
    assert (enforced["code"], enforced["job_desc"], enforced["told"]) == (SUCCESS, GPU_JOB, "")


RUBBISH: list[Reply] = [
    lambda _: b"rubbish\n",
    lambda _: b"\n",
    lambda _: b"[]\n",
    lambda _: b'{"v":1,"action":"destroy"}\n',
    lambda _: b'{"v":1,"ok":false,"code":"SW-WIRE","message":"m"}\n',
    lambda _: b"no end of line",
]


@pytest.mark.parametrize("reply", RUBBISH)
def test_rubbish_is_no_answer(path: Path, listening: Any, reply: Reply) -> None:
    listening(reply)
    result = run_case(path, job_desc=GPU_JOB, configure={"timeout_s": 0.05})
    assert (result["code"], result["job_desc"]) == (SUCCESS, GPU_JOB)
    assert "no answer" in result["logged"]


@pytest.mark.parametrize("mode", ["observe", "advise", "enforce"])
def test_without_a_daemon_plain_jobs_pass(path: Path, mode: str) -> None:
    assert run_case(path, job_desc=GPU_JOB, configure={"mode": mode})["code"] == SUCCESS


def test_without_a_daemon_a_service_is_refused(path: Path) -> None:
    result = run_case(path, job_desc={"script": SERVICE_SCRIPT})
    assert result["code"] == DENIED
    assert "SW-DAEMON-DOWN" in result["told"]
    assert "Try again" in result["told"]


@pytest.mark.parametrize(
    ("gpus", "rc"),
    [
        ({"gres": "gpu"}, DENIED),
        ({"tres_per_node": "gres:gpu:2"}, DENIED),
        ({"tres_per_job": "gres/gpu:2"}, DENIED),
        ({"tres_per_task": "gres/gpu=1"}, DENIED),
        ({"gres": "gpu:1g.10gb:1", "tres_per_job": "gpu:1"}, DENIED),
        ({"tres_per_node": "gres:gpu:1g.10gb:1,gres:gpu:3g.40gb:1"}, SUCCESS),
        ({"gres": "gpu:1g.10gb"}, SUCCESS),
        ({"tres_per_task": "gres/gpu:1g.10gb=1"}, SUCCESS),
        ({"tres_per_node": "gres:gpu:+1"}, DENIED),
        ({"tres_per_job": "gres:gpu:+1"}, DENIED),
        ({"tres_per_node": "gres:gpu: 1"}, DENIED),
        ({"tres_per_node": "gres:gpu:1k"}, DENIED),
        ({"tres_per_node": "gres:gpu:1g.10gb:+1"}, DENIED),
        ({"tres_per_node": "gres:gpu:_x:1"}, DENIED),
        ({"tres_per_node": "gres:gpu::1"}, DENIED),
        ({"tres_per_node": " gpu:1"}, DENIED),
        ({"tres_per_node": "gres:gpu:a100:1234567890123"}, DENIED),
        ({"tres_per_node": "gres:gpumem:1"}, SUCCESS),
        ({"tres_per_node": "gres:gpu:A-100.x+y:1"}, SUCCESS),
        ({"ntasks_per_tres": 1, "num_tasks": 2}, DENIED),
        ({"ntasks_per_tres": 1, "tres_per_job": "gres:gpu:1g.10gb:2"}, SUCCESS),
        ({"ntasks_per_tres": 65534}, SUCCESS),
    ],
)
def test_without_a_daemon_only_typed_gpus_are_limited(path: Path, gpus: Any, rc: int) -> None:
    result = run_case(path, job_desc=gpus)
    assert result["code"] == rc
    assert ("--gres=gpu:TYPE:N" in result["told"]) == (rc == DENIED)


@pytest.mark.parametrize(
    ("partition", "asked"), [("gpu", 1), ("cpu,gpu", 1), ("cpu", 0), ("gpu2", 0), (None, 1)]
)
def test_other_partitions_are_not_asked_about(
    path: Path, listening: Any, partition: str | None, asked: int
) -> None:
    daemon = listening(answering(action="pass"))
    job_desc = {"gres": "gpu:2", **({"partition": partition} if partition else {})}
    run_case(path, job_desc=job_desc, configure={"partitions": ["gpu"]})
    assert len(daemon.questions) == asked


def test_a_hanging_daemon_costs_the_budget_only(path: Path, listening: Any) -> None:
    listening(lambda _: None)
    result = run_case(path, job_desc=GPU_JOB, configure={"timeout_s": 0.010})
    assert result["code"] == SUCCESS
    assert result["elapsed_s"] < 0.030


def test_a_dripping_daemon_costs_the_budget_only(path: Path, listening: Any) -> None:
    def drip(_: bytes) -> None:
        with suppress(OSError):
            for _i in range(100):
                time.sleep(0.005)
                daemon._open[-1].send(b"x")

    daemon = listening(drip)
    result = run_case(path, job_desc=GPU_JOB, configure={"timeout_s": 0.050})
    assert result["elapsed_s"] < 0.100


def test_an_error_inside_lets_a_plain_job_pass(path: Path) -> None:
    result = run_case(path, job_desc=GPU_JOB, raise_on_read="tres_per_node")
    assert result["code"] == SUCCESS
    assert "no field tres_per_node" in result["logged"]


def test_the_gpus_of_ntasks_per_gpu_are_asked_about(path: Path, listening: Any) -> None:
    daemon = listening(answering(action="pass"))
    for field in ({}, {"tres_per_job": "gres:license:1"}):
        run_case(path, job_desc={"ntasks_per_tres": 1, **field})
    asked = [parse_gpu_requests(question["tres_per_job"]) for question in daemon.questions]
    assert asked == [(GpuRequest(None, 1),)] * 2


HEAD = 65_536
HOSTILE = {
    "blanks": "#!/bin/sh\n" + " " * HEAD,
    "blanks within": "#SLICEWISE a" + " " * (HEAD - 20) + "b\n",
    "blanks at the end": "#SLICEWISE a=1" + "\t " * HEAD,
    "lines of blanks": "  \n" * HEAD,
    "empty lines": "\n" * HEAD,
    "comments": "#\n" * HEAD,
    "one line": "#" * HEAD,
    "long directives": ("#SLICEWISE " + "a " * 1500 + "\n") * 20,
    "one long directive": "#SLICEWISE" * HEAD,
}
HOSTILE_GRES = {
    "letters": "gpu:" + "a" * HEAD,
    "digits": "gpu:" + "1" * HEAD,
    "counts": "gpu:a:" + "1" * HEAD,
    "colons": "gpu" + ":" * HEAD,
    "commas": "," * HEAD,
    "parts": "gres:gpu:a:1," * (HEAD // 13),
    "blanks": " " * HEAD + "gpu",
    "prefixes": "gres:" * (HEAD // 5) + "gpu",
}


@pytest.mark.parametrize("script", HOSTILE.values(), ids=HOSTILE)
def test_a_hostile_script_costs_no_time(path: Path, listening: Any, script: str) -> None:
    listening(answering(action="pass"))
    result = run_case(path, job_desc={"script": script})
    assert result["elapsed_s"] < 0.1


@pytest.mark.parametrize("gres", HOSTILE_GRES.values(), ids=HOSTILE_GRES)
@pytest.mark.parametrize("call", ["job_submit", "job_modify"])
def test_hostile_gres_cost_no_time(path: Path, listening: Any, call: str, gres: str) -> None:
    listening(answering(action="pass"))
    fields = ("tres_per_node", "tres_per_job", "tres_per_socket", "tres_per_task", "partition")
    job = dict.fromkeys(fields, gres)
    result = run_case(
        path, call, job_desc=job, job_rec=job | {"admin_comment": gres, "tres_fmt_req_str": gres}
    )
    assert result["elapsed_s"] < 0.1


def test_a_directive_that_is_too_long_is_cut_so_that_it_is_refused(
    path: Path, listening: Any
) -> None:
    daemon = listening(answering(action="pass"))
    longest = "#SLICEWISE model=".ljust(2048, "x")
    run_case(path, job_desc={"script": f"{longest}\n{longest}yyy\n"})
    kept, cut = daemon.questions[0]["directives"]
    assert directives_of_script((kept,)) == {"model": kept[17:]}
    with pytest.raises(InvalidInputError, match="SW-DIRECTIVE"):
        directives_of_script((cut,))
    assert len(cut) == 2049


def test_a_long_head_is_bounded(path: Path, listening: Any) -> None:
    daemon = listening(answering(action="pass"))
    script = "#!/bin/sh\n" + "#SLICEWISE a=1\n" * 200 + "# x\n" * 100_000 + "#SLICEWISE z=1\n"
    run_case(path, job_desc={"script": script})
    assert daemon.questions[0]["directives"] == ["#SLICEWISE a=1"] * 64


RELEASE, HOLD, UNSET = 4294967295, 0, 4294967294
MODIFY = [
    # whose job, the change, by whom, allowed
    (SERVICE_TAG, {"priority": RELEASE}, ALICE, False),
    (SERVICE_TAG, {"priority": 5}, ALICE, False),
    (SERVICE_TAG, {"priority": HOLD}, ALICE, True),
    (SERVICE_TAG, {"priority": UNSET, "comment": "c"}, ALICE, True),
    (SERVICE_TAG, {}, ALICE, True),
    (SERVICE_TAG, {"priority": RELEASE}, ROOT_UID, True),
    (SERVICE_TAG, {"priority": RELEASE}, SLURM_UID, True),
    (SERVICE_TAG, {"array_inx": "2"}, ALICE, False),
    (f"site text {SERVICE_TAG}", {"priority": RELEASE}, ALICE, False),
    (TAG, {"priority": RELEASE}, ALICE, True),
    (TAG, {"priority": 7}, ALICE, False),
    (TAG, {"time_limit": 5}, ALICE, True),
    *[
        (TAG, {key: "x"}, ALICE, False)
        for key in (
            "qos",
            "account",
            "partition",
            "gres",
            "tres_per_node",
            "tres_per_job",
            "tres_per_socket",
            "tres_per_task",
            "array_inx",
            "admin_comment",
        )
    ],
    (TAG, {"qos": "x"}, ROOT_UID, True),
    ("", {"qos": "x", "priority": RELEASE}, ALICE, True),
    ("slicewise is nice", {"qos": "x"}, ALICE, True),
]


@pytest.mark.parametrize(("comment", "change", "uid", "allowed"), MODIFY)
def test_modify(path: Path, comment: str, change: Any, uid: int, allowed: bool) -> None:
    result = run_case(
        path, "job_modify", job_desc=change, job_rec={"admin_comment": comment}, uid=uid
    )
    assert result["code"] == (SUCCESS if allowed else DENIED)
    assert bool(result["told"]) != allowed


def test_modify_does_not_talk_where_slurmctld_would_log_an_error(path: Path) -> None:
    case = {"job_desc": {"qos": "x"}, "job_rec": {"admin_comment": TAG}}
    result = run_case(path, "job_modify", **case, slurm="22.05")
    assert (result["code"], result["told"]) == (DENIED, "")


TYPED, UNTYPED = {"tres_per_node": "gres:gpu:1g.10gb:1"}, {"tres_per_job": "gres:gpu:2"}
UNADMITTED = [
    # the job without a tag, the change, allowed
    ({"partition": "gpu"}, {"tres_per_node": "gres:gpu:2", "gres": "gres:gpu:2"}, False),
    ({"partition": "gpu"}, TYPED, False),
    ({"partition": "gpu"}, {"tres_per_job": "gpu"}, False),
    ({"partition": "gpu"}, {"tres_per_socket": "gpu:1"}, False),
    ({"partition": "gpu"}, {"tres_per_task": "gres/gpu=1"}, False),
    ({"partition": "gpu"}, {"ntasks_per_tres": 1}, False),
    ({"partition": "gpu"}, {"ntasks_per_tres": 65534, "time_limit": 5}, True),
    ({"partition": "gpu"}, {"tres_per_node": "gres:license:1"}, True),
    ({"partition": "gpu"}, {"priority": 4294967295}, True),
    ({"partition": "gpu", **UNTYPED}, {"comment": "c"}, True),
    ({"partition": "gpu"}, {"tres_per_node": "gres:none"}, True),
    ({}, UNTYPED, False),
    ({"partition": "cpu"}, UNTYPED, True),
    ({"partition": "cpu"}, UNTYPED | {"partition": "gpu"}, False),
    ({"partition": "cpu", **UNTYPED}, {"partition": "gpu"}, False),
    ({"partition": "cpu", **TYPED}, {"partition": "cpu,gpu"}, False),
    ({"partition": "cpu", "tres_fmt_req_str": "cpu=2,gres/gpu=2"}, {"partition": "gpu"}, False),
    ({"partition": "cpu", "tres_fmt_req_str": "cpu=2,node=1"}, {"partition": "gpu"}, True),
    ({"partition": "cpu", **UNTYPED}, {"partition": "cpu2"}, True),
]


@pytest.mark.parametrize(("job_rec", "change", "allowed"), UNADMITTED)
def test_a_job_that_was_not_admitted_gets_no_gpu_later(
    path: Path, job_rec: Any, change: Any, allowed: bool
) -> None:
    case = {"job_desc": change, "job_rec": job_rec}
    only_gpu = {"partitions": ["gpu"]}
    result = run_case(path, "job_modify", **case, configure=only_gpu)
    assert result["code"] == (SUCCESS if allowed else DENIED)
    assert ("SW-NOT-ADMITTED" in result["told"]) != allowed
    for uid in (ROOT_UID, SLURM_UID):
        assert run_case(path, "job_modify", **case, configure=only_gpu, uid=uid)["code"] == SUCCESS


@pytest.mark.parametrize("mode", ["observe", "advise"])
def test_a_job_that_was_not_admitted_is_logged_only(path: Path, mode: str) -> None:
    result = run_case(path, "job_modify", job_desc=UNTYPED, job_rec={}, configure={"mode": mode})
    assert (result["code"], result["told"]) == (SUCCESS, "")
    assert "SW-NOT-ADMITTED" in result["logged"]


@pytest.mark.parametrize("mode", ["observe", "advise"])
def test_modify_is_refused_in_enforce_only(path: Path, mode: str) -> None:
    result = run_case(
        path,
        "job_modify",
        job_desc={"qos": "x"},
        job_rec={"admin_comment": TAG},
        configure={"mode": mode},
    )
    assert result["code"] == SUCCESS


def test_modify_that_cannot_be_judged_is_refused_but_to_administrators(path: Path) -> None:
    case = {"job_desc": {}, "job_rec": {"admin_comment": TAG}, "raise_on_read": "qos"}
    assert run_case(path, "job_modify", **case)["code"] == DENIED
    assert run_case(path, "job_modify", **case, uid=ROOT_UID)["code"] == SUCCESS
    observing = {"mode": "observe"}
    assert run_case(path, "job_modify", **case, configure=observing)["code"] == SUCCESS


@pytest.mark.parametrize("options", [{"mode": "maybe"}, {"timeout_s": 0}, {"sokcet": "/x"}])
def test_configure_refuses_nonsense(path: Path, options: Any) -> None:
    with pytest.raises(AssertionError, match="slicewise: "):
        run_case(path, job_desc={}, configure=options)
