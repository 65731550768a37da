"""Tests what ``slicewise profile`` refuses, submits, prints and writes; Slurm is a stand-in."""

import json
import shlex
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

import pytest
from builders.jobs import a_job
from builders.nodes import a_node
from toy_engine import ENGINE
from typer.testing import CliRunner, Result

from slicewise.cluster.language.errors import OutsideError, SlicewiseError, UnreachableError
from slicewise.cluster.language.jobs import JobState, JobView, NodeView
from slicewise.cluster.runtime.measurement_file import read_measurements
from slicewise.cluster.slurm.commands import CommandSlurm
from slicewise.cluster.slurm.sbatch import Submitted
from slicewise.launcher.cli import profile, profile_options
from slicewise.launcher.profiling import jobs
from slicewise.launcher.rules.engines.openai import OpenAIEngine
from slicewise.launcher.rules.engines.registry import ENGINES
from slicewise.launcher.rules.profiling import token_figures
from slicewise.launcher.rules.profiling.figures import (
    Begun,
    MeasuredWindow,
    Point,
    failed,
    measured,
    message_text,
)
from slicewise.launcher.rules.profiling.token_figures import (
    NOT_STARTED,
    Stream,
    TokenTask,
    TokenWindow,
)

SETTINGS = """\
[cluster]
name = "c"
partitions = ["gpu"]
[gpus."A100-80GB"]
types = ["1g.10gb", "2g.20gb", "7g.80gb"]
"""
JOB = a_job(814, name="slicewise-profile", tres={}, time_limit_s=60)
STEADY = [MeasuredWindow((1_000,) * 100, 1_000_000)] * 2
DONE = "".join(
    map(
        message_text,
        (
            Begun(number=1, batch=1, processes=1),
            measured(1, 1, STEADY, STEADY),
            failed(2, 1, "too large"),
        ),
    )
)


class Cluster:
    """Slurm, as far as it is asked.

    Attributes:
        scripts: those submitted.
        prints: what a job has printed, look by look; then it stays.
        states: likewise.
        refuses: types whose jobs are refused.
    """

    def __init__(self, place: Path) -> None:
        self.place = place
        self.scripts: list[str] = []
        self.cancelled: list[int] = []
        self.prints = [DONE]
        self.states: list[JobState | None] = [JobState.RUNNING]
        self.refuses: set[str] = set()
        self.interrupts = False

    def submit(self, script: str) -> Submitted:
        if any(f"gpu:{kind}:1" in script for kind in self.refuses):
            raise OutsideError("SW-SLURM-FAILED", "No quota. SW-QUOTA-NONE")
        self.scripts.append(script)
        return Submitted(813 + len(self.scripts), ("on borrowed quota",))

    async def nodes(self) -> tuple[NodeView, ...]:
        gpus = {"1g.10gb": 3, "2g.20gb": 1}
        node = a_node(gpus=gpus)
        return node, replace(node, gpus={"7g.80gb": 1}, partitions=frozenset({"other"}))

    async def tasks(self, job_ids: Sequence[int]) -> tuple[JobView, ...]:
        state = self.states.pop(0) if len(self.states) > 1 else self.states[0]
        text = self.prints.pop(0) if len(self.prints) > 1 else self.prints[0]
        for job_id in job_ids:
            (self.place / f"slicewise-profile-{job_id}.log").write_text(text)
        if self.interrupts:
            raise KeyboardInterrupt
        if state is None:
            raise OutsideError("SW-SLURM-FAILED", "Invalid job id specified")
        if state is JobState.OTHER:
            raise UnreachableError("SW-SLURM-DOWN", "no answer")
        return tuple(replace(JOB, job_id=one, state=state, ended="FAILED") for one in job_ids)

    async def cancel(self, job_id: int) -> None:
        self.cancelled.append(job_id)


@pytest.fixture
def cluster(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Cluster:
    (tmp_path / "slicewise.toml").write_text(SETTINGS)
    (tmp_path / "models" / "m" / "1").mkdir(parents=True)
    monkeypatch.setenv("SLICEWISE_CONFIG", str(tmp_path / "slicewise.toml"))
    monkeypatch.chdir(tmp_path)
    found = Cluster(tmp_path)
    monkeypatch.setattr(profile, "submit", found.submit)
    for name in ("nodes", "tasks", "cancel"):
        call = getattr(found, name)
        monkeypatch.setattr(CommandSlurm, name, lambda _, *args, call=call: call(*args))
    for name in ("_FILE_S", "_SLURM_S", "_FILE_PATIENCE_S"):
        monkeypatch.setattr(jobs, name, 0.0)
    return found


def run(*words: str) -> Result:
    where = ("--model-repository", "models", "--account", "vision", "--batches", "2,1,1")
    return call("measure", "m", *where, *words)


def call(*words: str) -> Result:
    return CliRunner().invoke(profile.profile_app, words)


def told(result: Result) -> str:
    """What it raised."""
    assert isinstance(result.exception, SlicewiseError)
    return str(result.exception)


def test_each_type_that_the_cluster_has_is_measured_by_a_job_of_its_own(cluster: Cluster):
    result = run("--json")
    assert result.exit_code == 0, result.output
    types = [line for text in cluster.scripts for line in text.split("\n") if "--gres" in line]
    assert types == ["#SBATCH --gres=gpu:1g.10gb:1", "#SBATCH --gres=gpu:2g.20gb:1"]
    rows = json.loads(result.stdout)["measurements"]
    assert [(row["board"], row["type"], row["batch"]) for row in rows] == [
        ("A100-80GB", "1g.10gb", 1),
        ("A100-80GB", "1g.10gb", 2),
        ("A100-80GB", "2g.20gb", 1),
        ("A100-80GB", "2g.20gb", 2),
    ]
    assert [row.model_dump() for row in read_measurements(Path("m.profile.json"))] == rows
    assert (rows[0]["throughput_mrps"], rows[1]["reason"]) == (100_000, "too large")


def test_figures_of_other_types_stay(cluster: Cluster):
    assert run("--types", "1g.10gb", "--output", "o ;$(x).json").exit_code == 0
    assert run("--types", "2g.20gb", "--output", "o ;$(x).json").exit_code == 0
    assert len(read_measurements(Path("o ;$(x).json"))) == 4


def test_it_tells_how_far_each_job_is(cluster: Cluster):
    begun = message_text(Begun(number=1, batch=1, processes=2))
    cluster.states = [JobState.PENDING, JobState.RUNNING, JobState.RUNNING]
    cluster.prints = ["", "", begun, DONE]
    shown = run("--types", "1g.10gb").stderr.splitlines()
    assert shown == [
        "1g.10gb: on borrowed quota",
        "1g.10gb (job 814): waits (QOSGrpBilling); why: slicewise why 814",
        "1g.10gb (job 814): Triton starts",
        "1g.10gb (job 814): measuring 1 of 2: batch 1, 2 processes",
        "1g.10gb (job 814): 2 points measured, 1 of them can't be served",
    ]


def test_a_type_that_is_refused_leaves_the_others_be_and_says_why(cluster: Cluster):
    cluster.refuses = {"1g.10gb"}
    result = run()
    assert "SW-QUOTA-NONE" in told(result)
    assert {row.type for row in read_measurements(Path("m.profile.json"))} == {"2g.20gb"}


def test_an_interrupt_cancels_the_jobs_and_keeps_what_they_measured(cluster: Cluster):
    cluster.interrupts = True
    cluster.prints = [message_text(measured(1, 1, STEADY, STEADY))]
    assert run().exit_code == 130
    assert cluster.cancelled == [814, 815]
    assert len(read_measurements(Path("m.profile.json"))) == 2


@pytest.mark.parametrize("state", [JobState.ENDED, None])
def test_a_job_that_ends_early_keeps_what_it_measured(cluster: Cluster, state: JobState | None):
    cluster.states = [state]
    said = "E1122 no \x1b[31mmem\x1b[2Jory\n"
    cluster.prints = [message_text(measured(1, 1, STEADY, STEADY)) + said]
    shown = told(run("--types", "1g.10gb"))
    assert "Job 814 on 1g.10gb ended after 1 of 2 points: E1122 no mem\ufffd[2Jory" in shown
    assert "SW-PROFILE-ENDED" in shown
    assert len(read_measurements(Path("m.profile.json"))) == 1


def test_while_slurm_does_not_answer_nothing_has_ended(cluster: Cluster):
    cluster.states = [JobState.OTHER, JobState.OTHER, JobState.RUNNING]
    cluster.prints = ["", "", "", DONE]
    assert run("--types", "1g.10gb").exit_code == 0


@pytest.mark.parametrize(
    ("words", "code"),
    [
        (("--types", "1g.10gb,nope"), "SW-PROFILE-UNKNOWN"),
        (("--types", "7g.80gb"), "SW-PROFILE-UNKNOWN"),
        (("--account", "a b;$(x)"), "SW-SERVICE"),
        (("--partition", "other", "--types", "1g.10gb"), "SW-PROFILE-UNKNOWN"),
        (("--runtime", "pyxis"), "SW-SERVICE"),
        (("--model-repository", "a b;$(x)"), "SW-SERVICE"),
        (("--model-repository", "none"), "SW-SERVICE-MODEL"),
        (("--data", "none.json"), "SW-INPUT-FILE"),
        (("--data", "slicewise.toml"), "SW-INPUT-FILE"),
        (("--output", "slicewise.toml"), "SW-INPUT-FILE"),
        (("--output", "none/m.json"), "SW-OUTPUT"),
    ],
)
def test_what_is_wrong_is_said_before_anything_is_submitted(
    cluster: Cluster, words: Sequence[str], code: str
):
    assert f"[{code}]" in told(run(*words))
    assert cluster.scripts == []


def test_a_hostile_model_is_none(cluster: Cluster):
    words = ("--model-repository", "models", "--account", "vision")
    assert "not 'a b;$(x)'" in told(call("measure", "a b;$(x)", *words))
    assert (cluster.scripts, list(cluster.place.glob("*.json"))) == ([], [])


@pytest.mark.parametrize("numbers", ["", "0", "1,,2", "1 2", "x", "-1", "5000", "٣"])
def test_batches_are_numbers(cluster: Cluster, numbers: str):
    assert run("--batches", numbers).exit_code == 2


def test_options_may_come_first(cluster: Cluster):
    words = ("--model-repository", "models", "--account", "vision", "--batches", "1,2")
    assert call("measure", *words, "m").exit_code == 0


def test_show_joins_files(cluster: Cluster):
    run("--types", "1g.10gb", "--output", "a.json")
    run("--types", "2g.20gb", "--output", "b.json")
    assert len(json.loads(call("show", "a.json", "b.json", "--json").stdout)) == 4
    shown = call("show", "a.json").stdout.splitlines()
    assert shown[1].split() == ["m", "A100-80GB", "1g.10gb", "1", "1", "100.0", "1.0", "400"]
    assert shown[2].endswith("too large")


def test_types_are_completed(cluster: Cluster, monkeypatch: pytest.MonkeyPatch):
    complete: Callable[[str], list[str]] = profile_options.complete_type
    assert complete("2") == ["2g.20gb"]
    monkeypatch.setenv("SLICEWISE_CONFIG", "/none")
    assert complete("") == []


def tokens(concurrency: int, answers: int, first_ms: int = 50) -> Point:
    streams = (Stream(1000 * first_ms, 1000 * (first_ms + 990), 512, 100),) * answers
    return token_figures.measured("512+100", concurrency, [TokenWindow(streams, 1_000_000)] * 2)


NO_TOKENS = {"tokens": None}
LANGUAGE = [tokens(1, 1), tokens(8, 5, 200), token_figures.cannot("512+100", 64, "out of memory")]


def language(cluster: Cluster, *words: str) -> Result:
    """Measure a model of llama.cpp."""
    directory = cluster.place / "models" / "tiny"
    directory.mkdir(exist_ok=True)
    (directory / "tiny.gguf").touch()
    where = ("--model-repository", "models", "--account", "vision", "--concurrency", "1,64,8")
    load = ("--prompt-tokens", "512", "--output-tokens", "100")
    return call("measure", "tiny", *where, *load, *words)


def test_a_language_model_is_measured_by_requests_at_a_time(cluster: Cluster):
    cluster.prints = ["".join(map(message_text, LANGUAGE))]
    result = language(cluster, "--json", "--environment", "LLAMA_ARG_CTX_SIZE=9 $(x)")
    assert result.exit_code == 0, result.output
    (script, _) = cluster.scripts
    task = next(
        line for line in script.split("\n") if "slicewise.launcher.profiling.job_main" in line
    )
    words = shlex.split(task)
    work = TokenTask.model_validate_json(
        words[words.index("slicewise.launcher.profiling.job_main") + 1]
    )
    assert (work.concurrencies, work.prompt_tokens, work.output_tokens) == ((1, 8, 64), 512, 100)
    assert (work.seconds, words[-2]) == (30, "llamacpp")
    assert 'echo 1 >"$private/slots"' in script
    assert "export LLAMA_ARG_CTX_SIZE='9 $(x)'" in script
    found = json.loads(result.stdout)
    # 500 tokens/s on one slice: 2000 s for a million of them.
    assert found["cheapest"] == {"type": "1g.10gb", "concurrency": 8, "millislice_s": 2_000_000}
    assert [row.model_dump() for row in read_measurements(Path("tiny.profile.json"))] == (
        found["measurements"]
    )
    assert found["measurements"][1]["tokens"]["ttft_p99_us"] == 200_000


def test_the_cheapest_is_said_with_the_lines_for_a_service(cluster: Cluster):
    cluster.prints = ["".join(map(message_text, LANGUAGE))]
    shown = language(cluster, "--ttft-ms", "100", "--types", "2g.20gb").stdout.splitlines()
    assert shown[1].split()[-9:] == "1 1.0 100.0 50.0 50.0 10.0 10.0 1,040 5.56".split()  # noqa: SIM905
    assert shown[3].endswith("can't")
    assert shown[4:] == [
        "2g.20gb, concurrency 64: out of memory",
        "In ms: TTFT until the first token, TPOT from one token to the next, p95 until the end.",
        "slice-h/M: slice-hours for a million output tokens.",
        "Cheapest within ttft_ms 100: 2g.20gb with concurrency 1.",
        "A million output tokens cost 5.56 slice-hours there.",
        "One takes as much as 15.4 of the prompt: ledger.output_weights.",
        'profile = "2g.20gb"',
        "concurrency = 1",
        "ttft_ms = 100",
        "tiny.profile.json",
    ]
    shown = call("show", "tiny.profile.json", "--ttft-ms", "10").stdout.splitlines()
    assert shown[-1] == "Nothing that was measured is served within ttft_ms 10."
    assert len(json.loads(call("show", "tiny.profile.json", "--json").stdout)) == 3


def test_figures_of_other_prompts_need_a_file_of_their_own(cluster: Cluster):
    cluster.prints = ["".join(map(message_text, LANGUAGE))]
    assert language(cluster).exit_code == 0
    assert language(cluster).exit_code == 0
    before = list(cluster.scripts)
    said = told(language(cluster, "--prompt-tokens", "9"))
    assert "other requests (512+100 tokens)" in said
    assert "[SW-OUTPUT]" in said
    assert cluster.scripts == before
    assert language(cluster, "--prompt-tokens", "9", "--output", "o.json").exit_code == 0


def test_a_file_with_figures_of_triton_needs_another_too(cluster: Cluster):
    cluster.prints = ["".join(map(message_text, LANGUAGE))]
    assert language(cluster).exit_code == 0
    file = Path("tiny.profile.json")
    rows = json.loads(file.read_text())
    file.write_text(json.dumps(rows | {"measurements": [rows["measurements"][0] | NO_TOKENS]}))
    assert "other requests (no tokens), with which" in told(language(cluster))


def test_figures_of_other_prompts_are_not_shown_together(cluster: Cluster):
    cluster.prints = ["".join(map(message_text, LANGUAGE))]
    assert language(cluster).exit_code == 0
    other = Path("tiny.profile.json").read_text().replace("512+100", "9+100")
    Path("o.json").write_text(other)
    for words in (("--json",), ()):
        said = told(call("show", "tiny.profile.json", "o.json", *words))
        assert "different requests: 512+100, 9+100 tokens" in said
        assert "[SW-INPUT-FILE]" in said
    Path("o.json").write_text(other.replace('"tiny"', '"other"'))
    assert call("show", "tiny.profile.json", "o.json").exit_code == 0


def test_types_that_have_no_cost_are_not_called_unserved(cluster: Cluster):
    cluster.prints = ["".join(map(message_text, LANGUAGE))]
    assert language(cluster).exit_code == 0
    file = Path("tiny.profile.json")
    file.write_text(file.read_text().replace("g.", "x."))
    shown = call("show", "tiny.profile.json", "--ttft-ms", "100").stdout.splitlines()
    assert shown[-1] == (
        "Served within ttft_ms 100: 1x.10gb, 2x.20gb. What that costs is unknown: not in"
        " slicewise.toml."
    )


def test_it_tells_how_far_a_language_model_is(cluster: Cluster):
    begun = message_text(Begun(number=2, batch=8, processes=1))
    cluster.states = [JobState.RUNNING]
    cluster.prints = ["", begun, "".join(map(message_text, LANGUAGE))]
    shown = language(cluster, "--types", "1g.10gb").stderr.splitlines()
    assert shown[1:] == [
        "1g.10gb (job 814): llama.cpp starts",
        "1g.10gb (job 814): measuring 2 of 3: concurrency 8",
        "1g.10gb (job 814): 3 points measured, 1 of them can't be served",
    ]


@pytest.mark.parametrize("said", ["CUDA error: out of memory", "llama-server: No such file"])
def test_a_server_that_never_starts_says_of_memory_alone_what_it_can_serve(
    cluster: Cluster, said: str
):
    never = [token_figures.cannot("512+100", one, NOT_STARTED) for one in (1, 8, 64)]
    cluster.states = [JobState.ENDED]
    cluster.prints = [f"{said}\n" + "".join(map(message_text, never)) + "did not start.\n"]
    result = language(cluster, "--types", "1g.10gb")
    if "memory" in said:
        assert result.exit_code == 0
        rows = read_measurements(Path("tiny.profile.json"))
        assert [(row.batch, row.reason) for row in rows] == [(one, said) for one in (1, 8, 64)]
    else:
        assert "ended after 0 of 3 points" in told(result)
        assert not Path("tiny.profile.json").exists()


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("--batches", "1"), "--batches: not for models of llama.cpp"),
        (("--processes", "1"), "--processes: not for models of llama.cpp"),
        (("--concurrency", "2000"), "numbers from 1 to 1024"),
        (("--environment", "NAME"), "write NAME=VALUE"),
    ],
)
def test_options_of_other_engines_are_refused(cluster: Cluster, words: Sequence[str], said: str):
    result = language(cluster, *words)
    assert (result.exit_code, said in " ".join(result.stderr.split())) == (2, True)
    assert cluster.scripts == []


def test_an_engine_s_own_requests_are_checked_before(cluster: Cluster):
    (cluster.place / "chats.jsonl").write_text('{"prompt": "a"}\n{"no": 1}\n')
    assert "line 2" in told(language(cluster, "--data", "chats.jsonl"))
    assert "[SW-SERVICE-ENGINE]" in told(language(cluster, "--engine", "toy"))
    assert "[SW-SERVICE-MODEL]" in told(language(cluster, "--engine", "vllm"))
    assert cluster.scripts == []


def test_a_site_s_engine_may_say_that_its_models_are_not_measured(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(ENGINES["llamacpp"], "options", ENGINE.options, raising=False)
    assert "[SW-SERVICE]" in told(language(cluster))
    assert cluster.scripts == []


def test_a_model_of_an_engine_that_is_not_measured_is_refused(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.delattr(OpenAIEngine, "usage")
    said = told(language(cluster))
    assert "[SW-SERVICE]" in said
    assert "a model of llama.cpp" in said
    assert cluster.scripts == []
