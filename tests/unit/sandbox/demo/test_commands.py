import json
import tomllib
from decimal import Decimal
from pathlib import Path
from subprocess import CompletedProcess

import pytest

from slicewise.cluster.language.errors import OutsideError, Refusal
from slicewise.launcher.services.service_file import read_service_file
from slicewise.sandbox.demo.commands import (
    Commands,
    parse_job_times,
    parse_ledger,
    parse_loans,
    parse_refusal,
    parse_repartitions,
    parse_sacct,
    parse_task_runs,
    publish_chat_model,
    publish_models,
    write_service_file,
)
from slicewise.sandbox.demo.record import LedgerView, LoanChange, TaskRun
from slicewise.sandbox.demo.run import costs
from slicewise.sandbox.demo.scenario import CHAT, GUEST, NLP, SHAPE, VISION, TenantPlan


@pytest.mark.parametrize("plan", [VISION, NLP, GUEST, CHAT])
def test_a_service_file_is_a_valid_service(plan: TenantPlan, tmp_path: Path) -> None:
    path = write_service_file(plan, Path("/models/demo"), tmp_path)
    spec = read_service_file(path)
    assert (spec.tenant, spec.name, spec.profile) == (plan.tenant, plan.service_name, plan.profile)
    assert spec.model_repository == "/models/demo"
    assert (spec.engine, spec.model) == (plan.engine, plan.model)
    assert path.stat().st_mode & 0o777 == 0o644


def test_a_path_can_t_break_out_of_its_toml_string(tmp_path: Path) -> None:
    evil = '/models"\nmin_replicas = 9\nx = "é\\'
    path = write_service_file(VISION, Path(evil), tmp_path)
    values = tomllib.loads(path.read_text(encoding="utf-8"))["service"]
    assert values["model_repository"] == evil
    assert values["min_replicas"] == 0


def test_the_profiles_are_ones_that_the_sandbox_has() -> None:
    assert {VISION.profile, NLP.profile, GUEST.profile, CHAT.profile} <= set(costs())


def test_published_models_can_be_read_by_everybody(tmp_path: Path) -> None:
    repository = publish_models(tmp_path)
    assert (repository / "tokens" / "1" / "model.py").stat().st_mode & 0o777 == 0o644
    assert (repository / "tokens").stat().st_mode & 0o777 == 0o755
    chat = publish_chat_model(tmp_path, "talk") / "talk"
    assert (chat / "talk.gguf").stat().st_mode & 0o777 == 0o644
    assert chat.stat().st_mode & 0o777 == 0o755


def test_the_chat_takes_no_slice_of_what_the_others_need() -> None:
    """Its profile is of another GPU, and its tenant's quota has room for it and the batch jobs."""
    assert not {VISION.profile, NLP.profile, SHAPE} & {CHAT.profile}
    asked_for = 2 * costs()[SHAPE] + costs()[CHAT.profile] * CHAT.max_replicas
    assert Decimal(CHAT.nominal) * 1000 == asked_for


def test_sacct_lines_become_millislice_seconds() -> None:
    lines = [
        "1|vision|100|110|10|billing=2000,cpu=1,gres/gpu:1g.10gb=2,gres/gpu=2,mem=512M,node=1",
        "1.batch|vision|100|112|12|cpu=1,gres/gpu:1g.10gb=2",
        "2|vision|100|105|5|billing=3500,gres/gpu:3g.40gb=1",
        "3|nlp|100|Unknown|7|billing=1000,gres/gpu:1g.18gb=1",
        "3.batch|nlp|100|Unknown|7|gres/gpu:1g.18gb=1",
        "4|guest|Unknown|Unknown|0|",
        "5|root|100|200|100|billing=0,cpu=4,mem=1.5G",
    ]
    sums = parse_sacct(lines, {"1g.10gb": 1000, "3g.40gb": 3500, "1g.18gb": 1000})
    assert {tenant: use for tenant, use in sums.items() if use} == {"vision": 37_500, "nlp": 7000}


def test_a_run_that_has_lost_its_start_began_with_its_batch_step() -> None:
    lines = [
        "1|vision|None|104|0|gres/gpu:1g.10gb=1",
        "1.batch|vision|100|107|7|gres/gpu:1g.10gb=1",
        "1.0|vision|101|107|6|gres/gpu:1g.10gb=1",
        "1|vision|110|115|5|gres/gpu:1g.10gb=1",
        "1.batch|vision|110|115|5|gres/gpu:1g.10gb=1",
    ]
    assert parse_sacct(lines, {"1g.10gb": 1000}) == {"vision": 9000}


def test_a_refusal_is_read_with_and_without_a_hint() -> None:
    assert parse_refusal("No quota.\nAsk for one.\nSW-QUOTA-NONE\n") == Refusal(
        "SW-QUOTA-NONE", "No quota.", "Ask for one."
    )
    assert parse_refusal("\nNo quota.\nSW-QUOTA-NONE") == Refusal("SW-QUOTA-NONE", "No quota.")


@pytest.mark.parametrize("text", ["", "Traceback (most recent call last):\nKeyError", "SW-BUSY"])
def test_a_crash_is_not_taken_for_a_refusal(text: str) -> None:
    with pytest.raises(OutsideError):
        parse_refusal(text)


STATEMENT = json.dumps(
    {
        "now_s": 1,
        "tenants": [{"tenant": "vision", "used_millislice_s": 123}],
        "lines": [
            {"tenant": "vision", "key": "captions", "used_millislice_s": 100},
            {"tenant": "vision", "key": "", "used_millislice_s": 23},
        ],
    }
)
BALANCED = json.dumps({"imbalance": 0})


def test_the_ledger_is_read() -> None:
    assert parse_ledger(BALANCED, STATEMENT) == LedgerView(
        0, {"vision": 123}, {"vision/captions": 100}
    )


@pytest.mark.parametrize(
    ("verified", "statement"),
    [
        ("", STATEMENT),
        ("{}", STATEMENT),
        ('{"imbalance": null}', STATEMENT),
        (BALANCED, "[]"),
        (BALANCED, '{"tenants": [{}]}'),
    ],
)
def test_an_unreadable_ledger_is_an_error_not_a_zero(verified: str, statement: str) -> None:
    with pytest.raises(OutsideError, match="ledger"):
        parse_ledger(verified, statement)


LOAN = {"lender": "nlp", "borrower": "vision", "amount_millislices": 2000}
LENT = {"loan": LOAN, "reason": "", "at_s": 9}


def test_loans_that_two_tenants_show_count_once_and_are_in_order() -> None:
    ended = {**LENT, "loan": {**LOAN, "amount_millislices": 0}, "at_s": 12}
    answers = (json.dumps([ended, LENT]), json.dumps([ended, LENT]))
    assert parse_loans(answers) == (
        LoanChange(9.0, "nlp", "vision", 2000),
        LoanChange(12.0, "nlp", "vision", 0),
    )


def test_repartitions_are_read() -> None:
    after = [{"profile": "3g.40gb", "start": 4, "size": 4}]
    one = {"node": "gpu01", "before": [], "after": after, "state": "done", "steps": []}
    expected = {"node": "gpu01", "before": "", "after": "3g.40gb@4", "state": "done"}
    assert parse_repartitions(json.dumps({"repartitions": [one]})) == (expected,)
    assert parse_repartitions('{"repartitions": []}') == ()


def test_unreadable_answers_are_errors_not_nothing() -> None:
    for answer in ("", "{}", '{"repartitions": [{}]}'):
        with pytest.raises(OutsideError, match="repartition"):
            parse_repartitions(answer)
    with pytest.raises(OutsideError, match="Loans"):
        parse_loans(["[{}]"])


def test_times_of_jobs_that_have_not_started_or_ended_are_unknown() -> None:
    lines = ["9|100|110|Unknown", "10|100|Unknown|Unknown"]
    assert parse_job_times(lines) == {9: (100.0, 110.0, None), 10: (100.0, None, None)}


def test_runs_of_tasks_are_in_order_and_say_how_they_ended() -> None:
    lines = [
        "26_2|COMPLETED|105|117",
        "26_1|PREEMPTED|100|103",
        "26_1|RUNNING|110|Unknown",
        "26_3|CANCELLED by 0|111|112",
        "26_[4-9]|PENDING|Unknown|Unknown",
    ]
    assert parse_task_runs(lines) == (
        TaskRun("26_1", 100.0, 103.0, gave_way=True),
        TaskRun("26_2", 105.0, 117.0, is_done=True),
        TaskRun("26_1", 110.0, None),
        TaskRun("26_3", 111.0, 112.0),
    )


def test_an_imbalance_is_reported_although_the_command_fails() -> None:
    def run(
        user: str, argv: tuple[str, ...], *, timeout_s: float, check: bool
    ) -> CompletedProcess[str]:
        if "verify" in argv:
            return CompletedProcess(argv, 1, '{"imbalance": 7}', "SW-LEDGER-IMBALANCE")
        return CompletedProcess(argv, 0, STATEMENT, "")

    assert Commands(run, {}).ledger().imbalance == 7


def test_sacct_is_asked_for_one_service_or_for_all() -> None:
    asked = []

    def run(
        user: str, argv: tuple[str, ...], *, timeout_s: float, check: bool
    ) -> CompletedProcess[str]:
        asked.append(set(argv))
        return CompletedProcess(argv, 0, "7|guest|100|109|9|gres/gpu:1g.18gb=1\n", "")

    commands = Commands(run, {"1g.18gb": 1000})
    assert commands.sacct(CHAT) == commands.sacct() == {"guest": 9000}
    assert asked[0] - asked[1] == {"--accounts=guest", "--name=talk"}


def test_commands_run_as_the_right_user_and_say_what_failed() -> None:
    calls = []

    def run(
        user: str, argv: tuple[str, ...], *, timeout_s: float, check: bool
    ) -> CompletedProcess[str]:
        calls.append((user, argv[2:]))
        return CompletedProcess(argv, int(user == "bob"), "", "No such thing.\nSW-BUSY\n")

    commands = Commands(run, {})
    commands.set_quota(VISION)
    commands.apply(VISION, Path("/s.toml"))
    assert [user for user, _ in calls] == ["root", "alice"]
    nominal = ("--nominal", VISION.nominal)
    limits = ("--lending-limit", VISION.nominal, "--borrowing-limit", VISION.nominal)
    set_all = ("slicewise", "tenant-quota", "set", "vision", *nominal, *limits)
    assert calls[0][1] == (*set_all, "--weight", VISION.weight)
    assert calls[1][1] == ("slicewise", "service", "apply", "/s.toml")
    with pytest.raises(OutsideError, match="No such thing"):
        commands.apply(NLP, Path("/s.toml"))
    assert commands.refused_application(NLP, Path("/s")) == Refusal("SW-BUSY", "No such thing.")
    assert commands.refused_application(GUEST, Path("/s")) is None
