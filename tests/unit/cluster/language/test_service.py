"""Tests the service schema: TOML and directives give the same service; bad keys are named."""

import math

import pytest

from slicewise.cluster.language.engine_names import ENGINE_NAME_WORDS
from slicewise.cluster.language.errors import InvalidInputError
from slicewise.cluster.language.service import (
    JobDirectives,
    ServiceSpec,
    directives_of_script,
    head_lines,
    is_service,
    job_directives,
    service_spec,
    spec_of_directives,
    values_of,
    whole_number,
)

GOOD: dict[str, object] = {
    "name": "bert",
    "tenant": "vision",
    "model_repository": "/models/bert",
    "model": "bert",
    "profile": "1g.10gb",
    "max_replicas": 4,
}


def test_directives_say_the_same_as_the_spec() -> None:
    spec = service_spec(
        GOOD
        | {"keep_alive_s": 12.5, "min_replicas": 1, "environment": {"B": "two words", "A": "1&2=%"}}
    )
    script = ("#!/bin/bash", "#SBATCH --array=0-3", *spec.directives(), "srun true")
    assert service_spec(directives_of_script(script)) == spec


@pytest.mark.parametrize("key", ServiceSpec.model_fields)
def test_every_key_of_a_service_can_stand_in_a_script(key: str) -> None:
    """``p95_ms`` could not: no service with that objective could be applied."""
    assert directives_of_script((f"#SLICEWISE {key}=1",)) == {key: "1"}


@pytest.mark.parametrize(
    "changes",
    [
        {"need_gib": 9.5, "max_queue_s": 0.1, "keep_alive_s": 0, "deadline_s": 60.0},
        {"need_gib": 1e6, "keep_alive_s": 1e-7, "retry_once": True, "concurrency": "auto"},
        {"need_gib": 1 / 3, "environment": {"B": "two words", "A": "1&2=%é"}, "p95_ms": 5},
        {"need_gib": 40, "gpus": 2, "nodes": 2, "tensor_parallel": 2, "runtime": "bare"},
    ],
)
def test_what_a_script_is_written_with_has_the_simplest_form(changes: dict[str, object]) -> None:
    spec = service_spec({key: GOOD[key] for key in GOOD if key != "profile"} | changes)
    assert spec_of_directives(directives_of_script(spec.directives())) == spec


@pytest.mark.parametrize(
    ("changes", "hint"),
    [
        ({"gpus": "2.0"}, "Write gpus=2"),
        ({"gpus": "02"}, "Write gpus=2"),
        ({"gpus": "+2"}, "Write gpus=2"),
        ({"gpus": "2_0"}, "Write gpus=20"),
        ({"nodes": "01"}, "Write nodes=1"),
        ({"keep_alive_s": "5.0"}, "Write keep_alive_s=5"),
        ({"retry_once": "True"}, "Write retry_once=true"),
        ({"environment": "B=1&A=2"}, "Write environment=A=2&B=1"),
        ({"environment": ""}, "Leave out environment."),
    ],
)
def test_another_form_of_a_value_is_refused_by_naming_the_simplest(
    changes: dict[str, str], hint: str
) -> None:
    """What reads the text later would take ``01`` nodes for several, or fail."""
    values = dict(service_spec(GOOD).values()) | changes
    with pytest.raises(InvalidInputError) as refused:
        spec_of_directives(values)
    said = refused.value.refusal
    assert (said.code, said.hint) == ("SW-DIRECTIVE", hint)


def test_a_number_that_was_admitted_once_is_read_or_left_out():
    texts = ("3", "3.0", "03", "+3", "-3", "3.5", "three", "", "inf", "nan", "1e300", "9" * 5000)
    found = [whole_number({"gpus": text}, "gpus", 1) for text in texts]
    assert found == [3, 3, 3, 3, *[1] * 8]
    assert whole_number({}, "gpus", 1) == 1


def test_a_lease_is_whole_minutes_in_slurm():
    leases = (60, 61, 900, 3601)
    limits = [service_spec(GOOD | {"lease_s": one}).time_limit_min for one in leases]
    assert limits == [1, 2, 15, 61]


def test_directives_that_can_not_be_read_are_shown_as_they_stand():
    for name in ("CUDA_VISIBLE_DEVICES", "ROCR_VISIBLE_DEVICES"):
        stored = service_spec(GOOD).values() | {"environment": f"A=1&{name}=0"}
        with pytest.raises(InvalidInputError, match="environment: "):
            service_spec(stored)
        assert values_of(stored) == stored


def test_an_environment_may_be_as_long_as_is_said():
    spec = service_spec(GOOD | {"environment": {"A": "x" * 1898}})
    assert service_spec(directives_of_script(spec.directives())) == spec


def test_directives_after_the_first_command_do_not_count() -> None:
    assert directives_of_script(("#!/bin/sh", "", "true", "#SLICEWISE name=x")) == {}


def test_only_the_blanks_that_lua_knows_are_taken_away() -> None:
    assert directives_of_script(("\v\f\r\t #SLICEWISE name=x \r",)) == {"name": "x"}
    for blank in ("\x1c", "\x85", "\xa0", "\u2003"):
        assert directives_of_script((f"{blank}#SLICEWISE name=x", "#SLICEWISE a=1")) == {}
        with pytest.raises(InvalidInputError, match="SW-DIRECTIVE"):
            directives_of_script((f"#SLICEWISE name=x{blank}",))


def test_lines_end_where_lua_says() -> None:
    assert head_lines("#a\rb\x0bc\u2028d\ne\n") == ["#a\rb\x0bc\u2028d", "e", ""]


def test_a_script_is_read_as_far_as_lua_reads_it() -> None:
    assert len("\n".join(head_lines("é" * 60_000)).encode()) == 65_536
    assert head_lines("x" + "é" * 60_000)[0][-2:] == "é\ufffd"
    lines = [f"#SLICEWISE key=v{number}" for number in range(64)]
    assert directives_of_script((*lines, "#SLICEWISE key=late")) == {"key": "v63"}


def test_a_directive_that_is_too_long_is_refused_in_few_words() -> None:
    longest = "#SLICEWISE model=".ljust(2048, "x")
    assert directives_of_script((longest,))
    with pytest.raises(InvalidInputError, match="SW-DIRECTIVE") as caught:
        directives_of_script((longest + "x",))
    assert len(str(caught.value)) < 400


@pytest.mark.parametrize("line", ["#SLICEWISE", "#SLICEWISE name", "#SLICEWISE name=a b"])
def test_unreadable_directive_is_refused(line: str) -> None:
    with pytest.raises(InvalidInputError, match=r"\[SW-DIRECTIVE\]"):
        directives_of_script((line,))


NAME = "1 to 32 lower-case letters, digits and hyphens"
PATH = "an absolute path of letters, digits and _ . / @ % + = : , -"
MODEL = "1 to 128 letters, digits and _ . -"
SLOTS = "a whole number from 1 to 256"
KEYS_FOLLOW = "Keys: name, tenant, model_repository"


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"name": "Bert"}, f"name: {NAME}, with no hyphen at either end, not 'Bert'."),
        ({"name": "x; rm -rf"}, f"name: {NAME}"),
        ({"name": "-x"}, f"name: {NAME}"),
        ({"name": 5}, "at either end, not 5."),
        ({"name": "v1"}, "name: no tenant and no service has the name v1: /v1 and"),
        ({"name": "x" * 9000}, "x" * 150 + "."),
        ({"tenant": "a b"}, "tenant: 1 to 63 letters, digits and _ . -, "),
        ({"tenant": "a\nb"}, "tenant: 1 to 63 letters, digits and _ . -, "),
        ({"model_repository": "models"}, f"model_repository: {PATH}"),
        ({"model_repository": "/models/$(reboot)"}, f"model_repository: {PATH}"),
        ({"model_repository": "/models/a\n#SBATCH --uid=0"}, f"model_repository: {PATH}"),
        ({"model_repository": "/models/a\n"}, f"model_repository: {PATH}"),
        ({"model_repository": "/models/../etc"}, "with no part '..', not '/models/../etc'."),
        ({"model": "../x"}, f"model: {MODEL}, the first no . or -, not '../x'."),
        ({"profile": "1g.10gb:9"}, "profile: 1 to 63 letters, digits and _ . + -, "),
        (
            {"profile": None, "need_gib": "a lot"},
            "need_gib: a number above 0, at most 1000000, not 'a lot'.",
        ),
        ({"profile": None, "need_gib": 0}, "need_gib: a number above 0, at most 1000000, not 0."),
        (
            {"profile": None, "need_gib": math.nan},
            "need_gib: a number above 0, at most 1000000, not nan.",
        ),
        (
            {"profile": None, "need_gib": 1e307},
            "need_gib: a number above 0, at most 1000000, not 1e+307.",
        ),
        (
            {"profile": None, "need_gib": math.inf},
            "need_gib: a number above 0, at most 1000000, not inf.",
        ),
        ({"max_replicas": 0}, f"max_replicas: {SLOTS}, not 0."),
        ({"max_replicas": 100_000}, f"max_replicas: {SLOTS}, not 100000."),
        ({"max_replicas": "six"}, f"max_replicas: {SLOTS}, not 'six'."),
        ({"min_replicas": -1}, "min_replicas: a whole number from 0 to 256, not -1."),
        ({"min_replicas": 5}, "min_replicas: 5 is above max_replicas 4; allowed: 0 to 4."),
        ({"concurrency": 1.5}, "concurrency: a whole number from 1 to 1024 or auto, not 1.5."),
        ({"keep_alive_s": math.nan}, "keep_alive_s: a number from 0 to 86400, not nan."),
        ({"lease_s": 59}, "lease_s: a whole number from 60 to 2592000, not 59."),
        ({"max_queue_s": 0}, "max_queue_s: a number above 0, at most 86400, not 0."),
        ({"p95_ms": 0}, "p95_ms: a whole number from 1 to 86400000, not 0."),
        ({"max_queue_s": 1, "p95_ms": 9}, "max_queue_s, p95_ms: give at most one of the two."),
        ({"tensor_parallel": 2}, "tensor_parallel: 2 does not divide the replica's 1 GPUs."),
        ({"priority_class": "urgent"}, "priority_class: low or normal or high, not 'urgent'."),
        ({"engine": "v-llm"}, f"engine: {ENGINE_NAME_WORDS}, not 'v-llm'."),
        ({"runtime": "docker"}, "runtime: bare or apptainer or pyxis, not 'docker'."),
        ({"readiness": "port"}, "readiness: inference or model, not 'port'."),
        ({"runtime": "pyxis"}, "image: needed with runtime apptainer or pyxis, and only there."),
        ({"image": "/x.sif"}, "image: needed with runtime apptainer or pyxis, and only there."),
        ({"runtime": "pyxis", "image": "$(reboot)"}, "image: at most 1024 letters, digits"),
        (
            {"runtime": "apptainer", "image": "/x.sif", "model_repository": "/a:b"},
            "model_repository: a container can't be given a path with : or ,",
        ),
        ({"environment": "A"}, "environment: a table of NAME = text"),
        ({"environment": "A=1&A=2"}, "environment: a table of NAME = text"),
        ({"environment": "A=%ff"}, "environment: a table of NAME = text"),
        ({"environment": {"A B": "1"}}, "environment: a table of NAME = text"),
        ({"environment": {"A": 1}}, "environment: a table of NAME = text"),
        ({"environment": {"A": "1\n2"}}, "environment: a table of NAME = text"),
        ({"environment": {"A": "x" * 1899}}, "at most 1900 bytes when percent-encoded"),
        ({"environment": {"SLURM_JOB_ID": "1"}}, "not SLURM_*, SLICEWISE_*, CUDA_VISIBLE_"),
        ({"environment": {"ROCR_VISIBLE_DEVICES": "1"}}, "ROCR_VISIBLE_DEVICES"),
        ({"environment": {"CUDA_VISIBLE_DEVICES": "0"}}, "environment: a table of"),
        ({"cpus": 0}, "cpus: a whole number from 1 to 1024, not 0."),
        ({"memory_mib": 63}, "memory_mib: a whole number from 64 up, not 63."),
        ({"partition": "a b"}, "partition: 1 to 63 letters, digits and _ . -"),
        ({"need_gib": 8}, "profile, need_gib: give exactly one of the two."),
        ({"profile": None}, "profile, need_gib: give exactly one of the two."),
        ({"pool": "Small"}, f"pool: {NAME}, with no hyphen at either end, not 'Small'."),
        ({"pool": "a", "nodes": 2}, "nodes: replicas of a pool have one node, not 2."),
        ({"pool": "a", "adapters": {"b": "c"}}, "adapters, pool: give at most one of the two."),
        ({"pool": "a", "model_file": "b"}, "model_file, pool: give at most one of the two."),
        ({"pool": "a", "session_affinity": "sequence"}, "leave it or pool out."),
        ({"model_mib": 0}, "model_mib: a whole number from 1 to 1073741824, not 0."),
    ],
)
def test_a_bad_value_is_told_with_what_is_allowed(change: dict[str, object], said: str) -> None:
    with pytest.raises(InvalidInputError) as caught:
        service_spec(GOOD | change)
    refusal = caught.value.refusal
    assert said in refusal.message
    assert "pattern" not in refusal.message
    assert len(refusal.message) < 450
    assert refusal.hint == ""


@pytest.mark.parametrize(
    ("key", "longest"),
    [
        ("name", "a" * 32),
        ("tenant", "a" * 63),
        ("model_repository", "/" + "a" * 1023),
        ("model", "a" * 128),
        ("profile", "1" * 63),
        ("partition", "A" * 63),
    ],
)
def test_texts_may_be_as_long_as_is_said(key: str, longest: str) -> None:
    service_spec(GOOD | {key: longest})
    with pytest.raises(InvalidInputError, match=rf"{key}: .*\b{len(longest)}\b"):
        service_spec(GOOD | {key: longest + "a"})


@pytest.mark.parametrize(
    ("key", "near"),
    [
        ("replicas", " (did you mean min_replicas or max_replicas?)"),
        ("tennant", " (did you mean tenant?)"),
        ("colour", ""),
    ],
)
def test_an_unknown_key_is_told_with_the_nearest_and_all(key: str, near: str) -> None:
    with pytest.raises(InvalidInputError) as caught:
        service_spec(GOOD | {key: 3})
    assert caught.value.refusal.message == f"{key}: no such key{near}."
    assert caught.value.refusal.hint.startswith(KEYS_FOLLOW)


def test_missing_keys_are_all_named_at_once() -> None:
    with pytest.raises(InvalidInputError) as caught:
        service_spec({"profile": "1g.10gb", "cpus": 0})
    assert caught.value.refusal.message == (
        "name: missing; tenant: missing; model_repository: missing; model: missing; "
        "cpus: a whole number from 1 to 1024, not 0."
    )
    assert caught.value.refusal.hint.startswith(KEYS_FOLLOW)


@pytest.mark.parametrize(
    ("values", "said"),
    [
        ({}, JobDirectives()),
        ({"need": "9GiB"}, JobDirectives(9216)),
        ({"need": "9.5GiB", "class": "low"}, JobDirectives(9728, "low")),
        ({"need": "512MiB", "class": "high"}, JobDirectives(512, "high")),
        ({"need": "0.001GiB", "class": "normal"}, JobDirectives(2, "normal")),
    ],
)
def test_what_a_plain_job_may_say(values: dict[str, str], said: JobDirectives) -> None:
    assert job_directives(values) == said


@pytest.mark.parametrize(
    ("values", "words"),
    [
        ({"need": "9"}, "need: '9' is not an amount of memory"),
        ({"need": "9GB"}, "'9GB'"),
        ({"need": "0GiB"}, "'0GiB'"),
        ({"need": "-1GiB"}, "'-1GiB'"),
        ({"need": "1e3GiB"}, "'1e3GiB'"),
        ({"need": "\u0661GiB"}, "not an amount"),
        ({"class": "urgent"}, "class: 'urgent' is not a class"),
        ({"class": ""}, "class: ''"),
        ({"tenant": "vision"}, "tenant: a job has no such key"),
    ],
)
def test_what_it_may_not_say(values: dict[str, str], words: str) -> None:
    with pytest.raises(InvalidInputError) as failure:
        job_directives(values)
    refusal = failure.value.refusal
    assert refusal.code == "SW-DIRECTIVE"
    assert words in refusal.message
    assert "9.5GiB" in refusal.hint
    assert "low, normal, high" in refusal.hint


@pytest.mark.parametrize(
    ("lines", "service"),
    [
        (("#SLICEWISE name=bert",), True),
        (("#SLICEWISE need=1GiB", "#SLICEWISE \t name="), True),
        (("#SLICEWISE need=1GiB", "#SLICEWISE model=name=x"), False),
        ((), False),
    ],
)
def test_a_name_makes_a_service(lines: tuple[str, ...], service: bool) -> None:
    assert is_service(lines) is service


def test_of_many_problems_few_are_thought_about(monkeypatch: pytest.MonkeyPatch):
    """slurmctld waits for the answer: 63 keys that are none took it 7 of its 10 ms."""
    guessed: list[str] = []

    def close(key: str, fields: object) -> list[str]:
        guessed.append(key)
        return []

    monkeypatch.setattr("slicewise.cluster.language.service.get_close_matches", close)
    with pytest.raises(InvalidInputError) as caught:
        service_spec({**GOOD, **{f"replica{'s' * count}": "1" for count in range(2, 65)}})
    assert len(guessed) <= 12
    assert caught.value.refusal.message.endswith("; and 51 more.")
