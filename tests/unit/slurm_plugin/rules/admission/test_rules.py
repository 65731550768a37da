"""Tests each rule of admission, in its order of precedence."""

from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest

from slicewise.cluster.language.errors import InvalidInputError
from slicewise.cluster.language.jobs import JobTag
from slicewise.cluster.language.service_places import ServicePlaces
from slicewise.cluster.language.units import Millislices
from slicewise.cluster.rpc.messages import CheckRequest, SubmitAnswer, SubmitRequest
from slicewise.slurm_plugin.admission_server import admit
from slicewise.slurm_plugin.admission_server.admit import SUBMISSIONS, Admission
from slicewise.slurm_plugin.rules.admission.priority import Formula
from slicewise.slurm_plugin.rules.admission.rules import (
    Mode,
    as_mode_allows,
    check_membership,
    submission_of,
)
from slicewise.slurm_plugin.rules.admission.rules import decide as decision
from slicewise.slurm_plugin.rules.admission.snapshot import (
    AdmissionRules,
    GpuType,
    Living,
    Recent,
    Snapshot,
)

pytestmark = pytest.mark.usefixtures("clock")

ALICE, BOB, UNKNOWN = 61001, 61002, 7
TOKEN = "ab12"  # noqa: S105 -- a mark, no secret


def gpu(name: str, cost: int, gib: int | None, free: int = 1) -> GpuType:
    memory = None if gib is None else gib * 1024
    return GpuType(name, Millislices(cost), memory, 7, free, frozenset({"gpu"}))


SNAPSHOT = Snapshot(
    partitions=frozenset({"gpu", "mig"}),
    quotas={"vision": 6000, "nlp": 1000},
    borrowing_limits={"vision": 2000, "nlp": 0},
    highest_limits={"vision": 8000, "nlp": 1000},
    type_limits={"vision": {"1g.20gb": 1}},
    budgets={"nlp": 3_600_000},
    used={"vision": 1500},
    guaranteed_used={"vision": 1500},
    shares={"vision": 0.75},
    gpu_types={
        t.name: t
        for t in (gpu("1g.10gb", 1000, 9), gpu("1g.20gb", 1750, 19), gpu("3g.40gb", 3500, 39))
    },
    node_costs=frozenset({5000, 7000}),
    services={("vision", "taken"): Living(814, BOB)},
    accounts_by_uid={ALICE: {"vision": frozenset({"urgent"}), "guest": frozenset()}},
    formula=Formula(3, 5, 2, 0, max=1000, wait_full_s=86_400, wait_full_limits=4, quantum=10),
    rules=AdmissionRules(
        high_class_for=frozenset({"nlp"}), class_of_qos={"urgent": "high", "scavenger": "low"}
    ),
)
FACTOR = 525
"""1000 × (3 × 1/2 + 5 × 3/4) / 10"""


def decide(request: SubmitRequest, snapshot: Snapshot, token: str) -> SubmitAnswer:
    return decision(request, snapshot, token).answer


SPEC = {
    "name": "bert",
    "tenant": "vision",
    "model_repository": "/models",
    "model": "bert",
    "profile": "1g.10gb",
    "max_replicas": "4",
}


def directives(**changes: str | None) -> tuple[str, ...]:
    values = {**SPEC, **changes}
    return tuple(f"#SLICEWISE {k}={v}" for k, v in values.items() if v is not None)


def submit(**changes: Any) -> SubmitRequest:
    values = {"uid": ALICE, "account": "vision", "partition": "gpu", "gres": "gres:gpu:1g.10gb:1"}
    return SubmitRequest(v=1, op="submit", **(values | changes))


def service(*, explain: bool = False, **changes: str | None) -> SubmitRequest:
    said = directives(**changes)
    return submit(directives=said, array="0-3", gres="", explain=explain)


def altered(request: SubmitRequest, **changes: str | int) -> SubmitRequest:
    return request.model_copy(update=changes)


def test_a_plain_job_is_admitted() -> None:
    assert decide(submit(), SNAPSHOT, TOKEN) == SubmitAnswer(
        action="admit",
        gres=None,
        qos="slicewise_vision",
        site_factor=FACTOR,
        tag="slicewise:1 token=ab12 tenant=vision flexible",
    )


def test_a_service_is_admitted_held_and_typed() -> None:
    assert decide(service(), SNAPSHOT, TOKEN) == SubmitAnswer(
        action="admit",
        gres="gpu:1g.10gb:1",
        qos="slicewise_vision",
        site_factor=FACTOR,
        tag="slicewise:1 token=ab12 tenant=vision service=bert",
        hold=True,
    )


def test_a_service_s_number_in_another_form_is_refused() -> None:
    answer = decide(service(min_replicas="01"), SNAPSHOT, TOKEN)
    assert (answer.action, answer.code, answer.hint) == (
        "refuse",
        "SW-DIRECTIVE",
        "Write min_replicas=1",
    )


def test_what_only_another_hour_allows_is_admitted_and_waits() -> None:
    night = replace(SNAPSHOT, quotas={"vision": 1000, "nlp": 0}, highest_limits={"vision": 6000})
    large = submit(gres="gres:gpu:1g.10gb:5", qos="slicewise_vision")
    assert decide(large, night, TOKEN).code == "SW-QUOTA-EXCEEDED"
    by_day = replace(night, highest_quotas={"vision": 6000})
    assert decide(large, by_day, TOKEN).qos == "slicewise_vision"
    larger = submit(gres="gres:gpu:1g.10gb:7", qos="slicewise_vision")
    assert decide(larger, by_day, TOKEN).code == "SW-QUOTA-EXCEEDED"


def test_a_type_without_a_count_gets_one_as_slurm_wants_it() -> None:
    answer = decide(submit(gres="gres:gpu:1g.10gb,gres:nic:2"), SNAPSHOT, TOKEN)
    assert (answer.action, answer.gres) == ("admit", "gpu:1g.10gb:1,nic:2")
    answer = decide(submit(gres="", tres_per_job="gres/gpu:1g.10gb"), SNAPSHOT, TOKEN)
    assert (answer.gres, answer.tres_per_job) == (None, "gres/gpu:1g.10gb:1")


@pytest.mark.parametrize("gres", ["gres:gpu:1g.10gb:1", "gres:gpu:3g.40gb:2,gres:gpu:1g.10gb:1"])
def test_a_tenant_that_may_borrow_is_admitted_into_the_borrowed_qos(gres: str) -> None:
    answer = decide(submit(qos="slicewise_vision_borrowed", gres=gres), SNAPSHOT, TOKEN)
    assert (answer.action, answer.qos) == ("admit", "slicewise_vision_borrowed")


@pytest.mark.parametrize(
    ("request_", "code", "words"),
    [
        (submit(account="nlp", uid=UNKNOWN), "SW-QUOTA-BORROW", "'nlp' may not borrow"),
        (submit(gres="gres:gpu:1g.10gb:9"), "SW-QUOTA-EXCEEDED", "is 6, with 2 that it may borrow"),
    ],
)
def test_refused_in_the_borrowed_qos(request_: SubmitRequest, code: str, words: str) -> None:
    qos = f"slicewise_{request_.account}_borrowed"
    answer = decide(altered(request_, qos=qos), SNAPSHOT, TOKEN)
    assert (answer.action, answer.code) == ("refuse", code)
    assert words in answer.message


def test_a_job_beyond_what_others_may_ever_lend_is_refused_with_the_numbers() -> None:
    less = replace(SNAPSHOT, highest_limits={**SNAPSHOT.highest_limits, "vision": 7000})
    answer = decide(submit(gres="gres:gpu:1g.10gb:8"), less, TOKEN)
    assert (answer.action, answer.code) == ("refuse", "SW-QUOTA-EXCEEDED")
    assert "is 6, with 1 that others may ever lend it: it could never start" in answer.message


@pytest.mark.parametrize(
    "request_",
    [
        submit(partition="cpu"),
        submit(partition=""),
        submit(partition="cpu", gres="gres:gpu:nonsense:1", account="none"),
    ],
)
def test_an_unmanaged_partition_passes(request_: SubmitRequest) -> None:
    assert decide(request_, SNAPSHOT, TOKEN) == SubmitAnswer(action="pass")


@pytest.mark.parametrize(
    "request_",
    [
        submit(partition="cpu,mig"),
        submit(account="", default_account="vision"),
        submit(account="VISION"),
        submit(gres="", tres_per_job="gres:gpu:1g.10gb:2"),
        submit(gres="", tres_per_task="gres/gpu:1g.10gb=1"),
        submit(gres="gres:gpu:3g.40gb:1,gres:gpu:1g.10gb:1"),
        submit(gres="gpu:1g.10gb:1,license:matlab"),
        submit(qos="normal", array="0-99"),
    ],
)
def test_admitted_in_the_tenants_qos(request_: SubmitRequest) -> None:
    answer = decide(request_, SNAPSHOT, TOKEN)
    assert (answer.action, answer.qos) == ("admit", "slicewise_vision")
    assert JobTag.find(answer.tag or "") == JobTag(TOKEN, "vision", is_flexible=True)


REFUSALS = [
    # the request, the code, what the text must say
    (altered(service(), partition="cpu"), "SW-SERVICE", ["'cpu'", "gpu, mig"]),
    (submit(directives=("#SLICEWISE bad",)), "SW-DIRECTIVE", ["bad"]),
    (service(profile=None), "SW-SERVICE", ["profile, need_gib"]),
    (service(max_replicas="-1"), "SW-SERVICE", ["max_replicas", "-1"]),
    (service(min_replicas="5"), "SW-SERVICE", ["min_replicas", "5", "4"]),
    (service(model_repository="/a;b"), "SW-SERVICE", ["model_repository"]),
    (service(colour="red"), "SW-SERVICE", ["colour"]),
    (service(tenant="nlp"), "SW-SERVICE", ["'nlp'", "'vision'", "--account=nlp"]),
    (
        service(audience="nlp,visoin"),
        "SW-TENANT-UNKNOWN",
        ["audience: 'visoin' is no tenant", "nlp", "vision", '"*"'],
    ),
    (service(tenant="v1"), "SW-SERVICE", ["tenant: no tenant and no service has the name v1"]),
    (submit(account="guest"), "SW-QUOTA-NONE", ["'guest'", "tenant-quota set guest"]),
    (submit(account="unknown"), "SW-TENANT-UNKNOWN", ["'unknown'", "guest, vision"]),
    (submit(account="unknown", uid=UNKNOWN), "SW-QUOTA-NONE", ["'unknown'"]),
    (submit(gres="gpu:a:b:c"), "SW-GRES", ["gpu:a:b:c"]),
    (submit(gres="gpu:2"), "SW-GRES", ["gpu:TYPE:2", "1g.10gb", "3g.40gb"]),
    (submit(gres="", tres_per_job="gres/gpu:1"), "SW-GRES", ["1g.10gb"]),
    (submit(gres="gpu:9g.99gb:1"), "SW-PROFILE-UNKNOWN", ["'9g.99gb'", "1g.10gb (1), "]),
    (service(profile="9g.99gb"), "SW-PROFILE-UNKNOWN", ["profile", "'9g.99gb'"]),
    (
        altered(service(), gres="gpu:3g.40gb:1"),
        "SW-SERVICE",
        ["gpu:3g.40gb:1", "gpu:1g.10gb:1"],
    ),
    (altered(service(), gres="gpu:1g.10gb:2"), "SW-SERVICE", ["gpu:1g.10gb:2"]),
    (altered(service(), tres_per_task="gpu:1"), "SW-SERVICE", ["gpu:1"]),
    (
        altered(service(), tasks=4, tres_per_task="gpu:1g.10gb:1"),
        "SW-SERVICE",
        ["gpu:1g.10gb:4"],
    ),
    (
        altered(service(), min_nodes=2),
        "SW-SERVICE",
        ["whole nodes or another number of nodes", "--nodes=1"],
    ),
    (altered(service(), exclusive=True), "SW-SERVICE", ["gpu:1g.10gb:1", "--exclusive"]),
    (altered(service(), tres_per_job="mps:100"), "SW-GRES", ["mps"]),
    (service(profile=None, need_gib="40"), "SW-NEED-TOO-LARGE", ["need_gib", "40", "39.0 GiB"]),
    (submit(gres="gpu:1g.10gb:9"), "SW-QUOTA-EXCEEDED", ["9 slices", "6, with 2", "'vision'"]),
    (
        submit(account="nlp", gres="gpu:1g.20gb:1", uid=UNKNOWN),
        "SW-QUOTA-EXCEEDED",
        ["1.75 slices", "is 1:"],
    ),
    # Others' numbers are not told.
    (submit(account="nlp", gres="gpu:1g.20gb:1"), "SW-TENANT-UNKNOWN", ["'nlp'", "guest, vision"]),
    (submit(gres="gpu:1g.20gb:2"), "SW-QUOTA-EXCEEDED", ["2 instances of 1g.20gb", "may have 1:"]),
    (service(name="taken"), "SW-SERVICE-EXISTS", ["'taken'", "job 814"]),
    (altered(service(), array="0-4"), "SW-SERVICE", ["0-3", "0-4"]),
    (altered(service(), array=""), "SW-SERVICE", ["no array"]),
    (altered(service(), array="0-3%2"), "SW-SERVICE", ["0-3%2"]),
    (altered(service(max_replicas="1"), array="1"), "SW-SERVICE", ["0-0"]),
]


class TestRefusals:
    @pytest.mark.parametrize(("request_", "code", "words"), REFUSALS)
    def test_each(self, request_: SubmitRequest, code: str, words: list[str]) -> None:
        answer = decide(request_, SNAPSHOT, TOKEN)
        assert (answer.action, answer.code) == ("refuse", code)
        text = f"{answer.message} {answer.hint}"
        assert [word for word in words if word not in text] == []
        assert answer.tag is None


def altered_uid(request: SubmitRequest) -> SubmitRequest:
    return request.model_copy(update={"uid": UNKNOWN})


MODES: list[tuple[Mode, SubmitRequest, str, str]] = [
    # the daemon's mode, the request, what is answered, what is logged
    ("observe", submit(), "pass", ""),
    ("observe", submit(gres="gpu:2"), "pass", "SW-GRES"),
    ("observe", submit(account="guest"), "pass", "SW-QUOTA-NONE"),
    ("observe", submit(partition="cpu"), "pass", ""),
    ("observe", service(), "pass", ""),
    ("observe", service(max_replicas="-1"), "refuse", "SW-SERVICE"),
    ("advise", submit(), "pass", ""),
    ("advise", submit(gres="gpu:2"), "refuse", "SW-GRES"),
    ("advise", service(), "pass", ""),
    ("enforce", submit(), "admit", ""),
    ("enforce", submit(gres="gpu:2"), "refuse", "SW-GRES"),
    ("enforce", service(), "admit", ""),
]


@pytest.mark.parametrize(("mode", "request_", "action", "code"), MODES)
def test_what_a_mode_allows(mode: Mode, request_: SubmitRequest, action: str, code: str) -> None:
    decided = decide(request_, SNAPSHOT, TOKEN)
    answer = as_mode_allows(decided, request_, mode)
    assert (answer.action, answer.code) == (action, code)
    if action == "pass":
        assert answer.tag == decided.tag


def test_root_submits_for_everybody() -> None:
    snapshot = replace(SNAPSHOT, accounts_by_uid={0: {"root": frozenset()}})
    assert decide(submit(uid=0), snapshot, TOKEN).action == "admit"


@pytest.mark.parametrize("qos", ["Slicewise_Vision_Borrowed", "SLICEWISE_VISION"])
def test_a_qos_is_known_by_any_case(qos: str) -> None:
    answer = decide(submit(qos=qos), SNAPSHOT, TOKEN)
    assert (answer.qos, answer.notice) == (qos.lower(), "")


def test_a_type_is_chosen_of_which_there_are_enough() -> None:
    few = replace(SNAPSHOT.gpu_types["1g.10gb"], total=1)
    snapshot = replace(SNAPSHOT, gpu_types={**SNAPSHOT.gpu_types, "1g.10gb": few}, type_limits={})
    assert decide(submit(gres="gpu:auto:1"), snapshot, TOKEN).gres == "gpu:1g.10gb:1"
    assert decide(submit(gres="gpu:auto:2"), snapshot, TOKEN).gres == "gpu:1g.20gb:2"


def test_one_slot_may_be_written_in_two_ways() -> None:
    for array in ("0", "0-0"):
        request = service(max_replicas="1").model_copy(update={"array": array})
        assert decide(request, SNAPSHOT, TOKEN).action == "admit"


@pytest.mark.parametrize(
    ("need_gib", "chosen"),
    [("1", "1g.10gb"), ("9", "1g.10gb"), ("9.5", "1g.20gb"), ("39", "3g.40gb")],
)
def test_need_chooses_the_cheapest_that_fits(need_gib: str, chosen: str) -> None:
    answer = decide(service(profile=None, need_gib=need_gib), SNAPSHOT, TOKEN)
    assert answer.gres == f"gpu:{chosen}:1"


def test_need_prefers_the_freer_then_the_name() -> None:
    request = service(profile=None, need_gib="1")

    def chosen(*types: GpuType) -> str | None:
        snapshot = replace(SNAPSHOT, gpu_types={t.name: t for t in types})
        return decide(request, snapshot, TOKEN).gres

    assert chosen(gpu("a", 1000, 9, free=1), gpu("b", 1000, 9, free=2)) == "gpu:b:1"
    assert chosen(gpu("b", 1000, 9), gpu("a", 1000, 9)) == "gpu:a:1"
    assert chosen(gpu("unknown", 1, None), gpu("a", 1000, 9)) == "gpu:a:1"


def test_admission_takes_a_replica_as_its_shape_says() -> None:
    decided = decision(service(gpus="2"), SNAPSHOT, TOKEN)
    assert (decided.answer.gres, decided.cost_millislices) == ("gpu:1g.10gb:2", 2000)
    assert decided.answer.nodes is None
    two = altered(service(gpus="2"), gres="gpu:1g.10gb:2")
    assert decide(two, SNAPSHOT, TOKEN).action == "admit"
    one = decide(altered(service(gpus="2"), gres="gpu:1g.10gb:1"), SNAPSHOT, TOKEN)
    assert (one.code, "--gres=gpu:1g.10gb:2" in one.hint) == ("SW-SERVICE", True)
    # The tenant may have one 1g.20gb only, so two of what fits are two 3g.40gb.
    said = decide(service(profile="1g.20gb", gpus="2"), SNAPSHOT, TOKEN)
    assert said.code == "SW-QUOTA-EXCEEDED"
    rich = replace(SNAPSHOT, quotas={"vision": 8000})
    need = decide(service(profile=None, need_gib="10", gpus="2"), rich, TOKEN)
    assert need.gres == "gpu:3g.40gb:2"


def test_a_replica_of_several_nodes_gets_them_and_costs_all() -> None:
    asked = service(nodes="2", gpus="2")
    decided = decision(altered(asked, min_nodes=2), SNAPSHOT, TOKEN)
    assert (decided.answer.gres, decided.answer.nodes) == ("gpu:1g.10gb:2", 2)
    assert decided.cost_millislices == 4000
    for nodes in (1, 3):
        answer = decide(altered(asked, min_nodes=nodes), SNAPSHOT, TOKEN)
        assert (answer.code, "--nodes=2" in answer.hint) == ("SW-SERVICE", True)
    assert decide(service(nodes="2", gpus="4"), SNAPSHOT, TOKEN).code == "SW-QUOTA-EXCEEDED"


@pytest.mark.parametrize(
    ("gpus", "nodes", "chosen"), [(2, 2, "a"), (1, 3, "a"), (3, 1, "b"), (2, 3, "b"), (5, 1, "")]
)
def test_need_chooses_a_type_of_which_each_node_has_enough(
    gpus: int, nodes: int, chosen: str
) -> None:
    """Five of a type in all are no use to a replica that asks for three on one node."""
    types = (
        replace(gpu("a", 1000, 9), total=5, on_nodes=(2, 2, 1)),
        replace(gpu("b", 1100, 9), total=9, on_nodes=(4, 3, 2)),
    )
    snapshot = replace(SNAPSHOT, gpu_types={one.name: one for one in types})
    asked = service(profile=None, need_gib="1", gpus=str(gpus), nodes=str(nodes))
    answer = decide(asked, replace(snapshot, quotas={"vision": 9000}), TOKEN)
    assert answer.gres == (f"gpu:{chosen}:{gpus}" if chosen else None)
    assert answer.code == ("" if chosen else "SW-NEED-TOO-LARGE")


def test_need_without_any_gpu() -> None:
    snapshot = replace(SNAPSHOT, gpu_types={})
    answer = decide(service(profile=None, need_gib="1"), snapshot, TOKEN)
    assert answer.code == "SW-NEED-TOO-LARGE"


def test_membership() -> None:
    check_membership(ALICE, "guest", SNAPSHOT)
    for uid in (ALICE, UNKNOWN):
        with pytest.raises(InvalidInputError, match="'nlp' is no Slurm account of yours"):
            check_membership(uid, "nlp", SNAPSHOT)


def test_a_check_is_the_submission_it_stands_for() -> None:
    check = CheckRequest(tenant="vision", directives=directives())
    submitted = altered(service(), time_limit_min=15)
    assert submission_of(check, ALICE, SNAPSHOT.partitions) == submitted


class TestLeaseAndBudget:
    """A replica's lease against a period of the budget, as checked and as submitted."""

    BUDGET = 3_600_000
    """An hour of a slice."""

    @pytest.mark.parametrize(("lease_s", "code"), [(3600, ""), (3601, "SW-BUDGET-EXCEEDED")])
    def test_plan_answers_as_apply(self, lease_s: int, code: str) -> None:
        snapshot = replace(SNAPSHOT, budgets={"vision": self.BUDGET})
        check = CheckRequest(tenant="vision", directives=directives(lease_s=str(lease_s)))
        planned = decide(submission_of(check, ALICE, snapshot.partitions), snapshot, TOKEN)
        minutes = -(-lease_s // 60)
        applied = altered(service(lease_s=str(lease_s)), time_limit_min=minutes)
        assert planned == decide(applied, snapshot, TOKEN)
        assert planned.code == code

    def test_the_refusal_names_the_lease_that_fits(self) -> None:
        snapshot = replace(SNAPSHOT, budgets={"vision": 300_000})
        asked = altered(service(), time_limit_min=15)
        answer = decide(asked, snapshot, TOKEN)
        assert answer.message.startswith("lease_s: one replica of 1 slice for 15 min")
        assert answer.hint.startswith("Write lease_s=300 or less")

    def test_no_lease_fits_into_less_than_a_minute(self) -> None:
        snapshot = replace(SNAPSHOT, budgets={"vision": 59_000})
        answer = decide(altered(service(), time_limit_min=1), snapshot, TOKEN)
        assert answer.hint == "Ask for less, or ask the operator for a larger budget."


def with_rule(untyped: str) -> Snapshot:
    return replace(SNAPSHOT, rules=AdmissionRules(untyped))


class TestTypes:
    """What is chosen where no type was said, and what is written instead."""

    @pytest.mark.parametrize(
        ("asked", "answered"),
        [
            ({"gres": "gres:gpu:auto:2"}, {"gres": "gpu:1g.10gb:2"}),
            ({"gres": "gpu:auto"}, {"gres": "gpu:1g.10gb:1"}),
            ({"gres": "gres/gpu:auto:1,gres/nic:2"}, {"gres": "gpu:1g.10gb:1,nic:2"}),
            (
                {"gres": "", "tres_per_job": "gres:gpu:auto:2"},
                {"tres_per_job": "gres:gpu:1g.10gb:2"},
            ),
            (
                {"gres": "", "tres_per_task": "gres/gpu:auto=1"},
                {"tres_per_task": "gres/gpu:1g.10gb=1"},
            ),
            (
                {"gres": "", "tres_per_socket": "gres:gpu:auto:1"},
                {"tres_per_socket": "gres:gpu:1g.10gb:1"},
            ),
            (
                {"gres": "gpu:auto:1", "tres_per_job": "gres:gpu:auto:1"},
                {"gres": "gpu:1g.10gb:1", "tres_per_job": "gres:gpu:1g.10gb:1"},
            ),
            ({"gres": "gpu:1g.10gb:1"}, {}),
        ],
    )
    def test_of_gpu_auto(self, asked: dict[str, str], answered: dict[str, str]) -> None:
        answer = decide(submit(**asked), SNAPSHOT, TOKEN)
        written = answer.model_dump(
            include={"gres", "tres_per_job", "tres_per_socket", "tres_per_task"}, exclude_none=True
        )
        assert (answer.action, written) == ("admit", answered)
        assert answer.notice == ("Its GPU type is 1g.10gb." if answered else "")

    @pytest.mark.parametrize(
        ("untyped", "gres"), [("auto", "gpu:1g.10gb:2"), ("3g.40gb", "gpu:3g.40gb:2")]
    )
    def test_of_no_type_by_the_sites_rule(self, untyped: str, gres: str) -> None:
        answer = decide(submit(gres="gres:gpu:2"), with_rule(untyped), TOKEN)
        assert (answer.action, answer.gres) == ("admit", gres)

    def test_a_rule_that_names_a_type_that_no_node_has(self) -> None:
        answer = decide(submit(gres="gpu:2"), with_rule("a100"), TOKEN)
        assert answer.code == "SW-PROFILE-UNKNOWN"

    @pytest.mark.parametrize(
        ("need", "gres", "chosen"),
        [
            ("9GiB", "", "gpu:1g.10gb:1"),
            ("10GiB", "", "gpu:1g.20gb:1"),
            ("10GiB", "gpu:1", "gpu:1g.20gb:1"),
            ("20GiB", "gpu:auto:1", "gpu:3g.40gb:1"),
            ("20GiB", "nic:1", "nic:1,gpu:3g.40gb:1"),
            ("19GiB", "gpu:2", "gpu:3g.40gb:2"),
        ],
    )
    def test_of_what_a_job_needs(self, need: str, gres: str, chosen: str) -> None:
        """Of 1g.20gb the tenant may have one only."""
        request = submit(gres=gres, directives=(f"#SLICEWISE need={need}",))
        answer = decide(request, SNAPSHOT, TOKEN)
        assert (answer.action, answer.gres) == ("admit", chosen)

    @pytest.mark.parametrize(
        ("gres", "need", "code"),
        [
            ("gpu:auto:1", "40GiB", "SW-NEED-TOO-LARGE"),
            ("gpu:1g.10gb:1", "10GiB", "SW-NEED-TOO-LARGE"),
            ("gpu:auto:1,gpu:auto:2", "1GiB", "SW-GRES"),
            ("gpu:auto:1,gpu:2", "1GiB", "SW-GRES"),
            ("gres:shard:1", "1GiB", "SW-GRES"),
            ("mps:50,gpu:1g.10gb:1", "1GiB", "SW-GRES"),
        ],
    )
    def test_refused(self, gres: str, need: str, code: str) -> None:
        request = submit(gres=gres, directives=(f"#SLICEWISE need={need}",))
        assert decide(request, SNAPSHOT, TOKEN).code == code

    def test_beside_a_named_type_it_is_another_one_of_the_same_node(self) -> None:
        types = dict(SNAPSHOT.gpu_types)
        beside = {"1g.10gb": {"1g.20gb"}, "1g.20gb": {"1g.10gb", "3g.40gb"}, "3g.40gb": {"1g.20gb"}}
        types = {name: replace(types[name], beside=frozenset(beside[name])) for name in types}
        request = submit(gres="gpu:auto:1,gpu:1g.10gb:1")
        answer = decide(request, replace(SNAPSHOT, gpu_types=types), TOKEN)
        assert answer.gres == "gpu:1g.20gb:1,gpu:1g.10gb:1"

    def test_a_type_of_other_partitions_is_not_chosen(self) -> None:
        cheap = replace(gpu("a", 1, 9), partitions=frozenset({"mig"}))
        snapshot = replace(SNAPSHOT, gpu_types={**SNAPSHOT.gpu_types, "a": cheap})
        assert decide(submit(gres="gpu:auto:1"), snapshot, TOKEN).gres == "gpu:1g.10gb:1"
        assert decide(submit(gres="gpu:auto", partition="mig"), snapshot, TOKEN).gres == "gpu:a:1"


class TestCost:
    """Of one task of the array: all that its nodes and tasks have together."""

    @pytest.mark.parametrize(
        ("asked", "slices"),
        [
            ({"gres": "gpu:1g.10gb:2"}, 2),
            ({"gres": "gpu:1g.10gb:2", "min_nodes": 3}, 6),
            ({"gres": "", "tres_per_job": "gres:gpu:1g.10gb:3", "min_nodes": 3}, 3),
            ({"gres": "", "tres_per_task": "gres:gpu:1g.10gb:1", "tasks": 4}, 4),
            (
                {"gres": "", "tres_per_task": "gpu:1g.10gb", "tasks_per_node": 2, "min_nodes": 2},
                4,
            ),
            ({"gres": "", "tres_per_task": "gres:gpu:1g.10gb:1", "min_nodes": 2}, 2),
            ({"gres": "", "tres_per_socket": "gres:gpu:1g.10gb:1", "min_nodes": 2}, 2),
            ({"gres": "gpu:1g.10gb:2", "tres_per_job": "gres:gpu:1g.10gb:4", "min_nodes": 2}, 4),
            ({"gres": "gpu:1g.10gb:1,gpu:3g.40gb:1"}, 4.5),
            ({"gres": "gpu:1g.10gb:1", "exclusive": True}, 5),
            ({"gres": "", "exclusive": True, "min_nodes": 2}, 10),
        ],
    )
    def test_each(self, asked: dict[str, Any], slices: float) -> None:
        roomy = replace(SNAPSHOT, quotas={"vision": 100_000})
        assert decision(submit(**asked), roomy, TOKEN).cost_millislices == slices * 1000

    def test_a_whole_node_that_may_have_no_gpu_costs_nothing(self) -> None:
        snapshot = replace(SNAPSHOT, node_costs=frozenset({0, 7000}))
        assert decision(submit(gres="", exclusive=True), snapshot, TOKEN).cost_millislices == 0
        refused = decision(submit(exclusive=True, min_nodes=2), snapshot, TOKEN).answer
        assert refused.code == "SW-QUOTA-EXCEEDED"

    def test_nothing_is_lent_for_gpus_that_come_with_a_whole_node(self) -> None:
        """It was admitted where borrowed quota would have been enough, and waited for ever."""
        snapshot = replace(SNAPSHOT, node_costs=frozenset({7000}))
        for gres in ("", "gpu:1g.10gb:1"):
            refused = decide(submit(gres=gres, exclusive=True), snapshot, TOKEN)
            assert refused.code == "SW-QUOTA-EXCEEDED"
            assert "is 6: it could never start, for Slurm counts all GPUs" in refused.message
            assert "--exclusive" in refused.hint
        named = decision(submit(gres="gpu:1g.10gb:7", exclusive=True), snapshot, TOKEN)
        assert named.answer.action == "admit"
        assert named.tag is not None
        assert named.tag.whole_millislices == 0

    def test_what_slurm_counts_of_a_whole_node_stands_in_its_tag(self) -> None:
        found = decision(submit(exclusive=True), SNAPSHOT, TOKEN)
        assert found.tag is not None
        assert (found.tag.whole_millislices, found.tag.is_flexible) == (5000, False)

    def test_a_job_without_gpus_passes(self) -> None:
        request = submit(gres="", directives=("#SLICEWISE class=low",))
        assert decide(request, SNAPSHOT, TOKEN).action == "pass"

    @pytest.mark.parametrize(
        ("minutes", "code"), [(60, ""), (61, "SW-BUDGET-EXCEEDED"), (None, "")]
    )
    def test_against_a_period_of_the_budget(self, minutes: int | None, code: str) -> None:
        request = submit(account="nlp", uid=UNKNOWN, time_limit_min=minutes)
        assert decide(request, SNAPSHOT, TOKEN).code == code


class TestPlace:
    """Guaranteed or borrowed."""

    @pytest.mark.parametrize(
        ("asked", "qos", "flexible"),
        [
            ({"gres": "gpu:1g.10gb:4"}, "slicewise_vision", True),
            ({"gres": "gpu:1g.10gb:5"}, "slicewise_vision_borrowed", True),
            ({"gres": "gpu:1g.10gb:7"}, "slicewise_vision_borrowed", True),
            ({"gres": "gpu:1g.10gb:5", "requeue": True}, "slicewise_vision_borrowed", True),
            ({"gres": "gpu:1g.10gb:5", "requeue": False}, "slicewise_vision", False),
            ({"gres": "gpu:1g.10gb:5", "interactive": True}, "slicewise_vision", False),
            ({"gres": "gpu:1g.10gb:5", "qos": "slicewise_vision"}, "slicewise_vision", False),
            ({"qos": "slicewise_vision_borrowed"}, "slicewise_vision_borrowed", False),
            ({"gres": "gpu:1g.10gb:5", "qos": "normal"}, "slicewise_vision_borrowed", True),
        ],
    )
    def test_by_what_is_left_of_the_guarantee(
        self, asked: dict[str, Any], qos: str, flexible: bool
    ) -> None:
        answer = decide(submit(**asked), SNAPSHOT, TOKEN)
        tag = JobTag.find(answer.tag or "")
        assert tag is not None
        assert (answer.qos, tag.is_flexible) == (qos, flexible)

    def test_who_waits_for_all_that_may_be_borrowed_has_the_next_job_wait_there_too(self) -> None:
        full = replace(SNAPSHOT, used={"vision": 8000}, guaranteed_used={"vision": 6000})
        assert decide(submit(), full, TOKEN).qos == "slicewise_vision_borrowed"

    @pytest.mark.parametrize("request_", [submit(explain=True), service(explain=True)])
    def test_only_who_asks_is_told_why(self, request_: SubmitRequest) -> None:
        assert decide(request_, SNAPSHOT, TOKEN).decision == (
            "guaranteed in QOS slicewise_vision (1.5 of 6 slices held or waited for), "
            "site_factor 525"
        )
        assert not decide(altered(request_, explain=False), SNAPSHOT, TOKEN).decision

    def test_one_slice_is_no_slices(self) -> None:
        one = replace(SNAPSHOT, guaranteed_used={}, quotas={**SNAPSHOT.quotas, "vision": 1000})
        assert (
            "(0 of 1 slice held or waited for)" in decide(submit(explain=True), one, TOKEN).decision
        )
        none = replace(SNAPSHOT, quotas={**SNAPSHOT.quotas, "vision": 500}, highest_limits={})
        assert decide(submit(), none, TOKEN).message.startswith("One task costs 1 slice, the quota")

    def test_the_decision_in_one_line(self) -> None:
        answer = decide(submit(gres="gpu:auto:5", explain=True), SNAPSHOT, TOKEN)
        assert answer.decision == (
            "borrowed in QOS slicewise_vision_borrowed (1.5 slices in use, 8 at most with what is "
            "lent), "
            "GPU type 1g.10gb, site_factor 525"
        )

    def test_the_user_is_told(self) -> None:
        answer = decide(submit(gres="gpu:1g.10gb:5", qos="normal"), SNAPSHOT, TOKEN)
        assert answer.notice == (
            "QOS normal is not used for GPUs here: the quota decides. It runs on borrowed quota: "
            "it may be requeued when its owner needs that back."
        )
        assert decide(submit(), SNAPSHOT, TOKEN).notice == ""

    def test_who_asks_for_more_than_is_guaranteed_is_told_what_it_waits_for(self) -> None:
        """No part of it ever starts within the guarantee, so it waits as long as nobody lends."""
        large = submit(gres="gpu:1g.10gb:7")
        assert decide(large, SNAPSHOT, TOKEN).notice == (
            "One task costs 7 slices, 'vision' is guaranteed 6: it starts only while others lend "
            "the rest, and may be requeued when they need that back."
        )
        by_day = replace(SNAPSHOT, highest_quotas={"vision": 7000})
        assert "lend the rest" not in decide(large, by_day, TOKEN).notice

    @pytest.mark.parametrize(
        ("asked", "code"),
        [
            ({"qos": "slicewise_nlp"}, "SW-QOS"),
            ({"gres": "gpu:1g.10gb:7", "requeue": False}, "SW-QUOTA-EXCEEDED"),
            ({"gres": "gpu:1g.10gb:7", "qos": "slicewise_vision"}, "SW-QUOTA-EXCEEDED"),
            ({"directives": ("#SLICEWISE class=high",)}, "SW-CLASS-FORBIDDEN"),
        ],
    )
    def test_refused(self, asked: dict[str, Any], code: str) -> None:
        assert decide(submit(**asked), SNAPSHOT, TOKEN).code == code

    @pytest.mark.parametrize(
        ("job_class", "factor"), [("low", 500), ("normal", 650), ("high", 800)]
    )
    def test_the_class_counts(self, job_class: str, factor: int) -> None:
        request = submit(account="nlp", uid=UNKNOWN, directives=(f"#SLICEWISE class={job_class}",))
        answer = decide(request, SNAPSHOT, TOKEN)
        tag = JobTag.find(answer.tag or "")
        assert tag is not None
        assert (answer.site_factor, tag.job_class) == (factor, job_class)

    def test_what_it_asks_for_counts(self) -> None:
        """1000 × (3 × 1/2 + 5 × 3/4 + 2 × area) / 12; a slice for ten hours has area 0.8."""
        snapshot = replace(SNAPSHOT, formula=replace(SNAPSHOT.formula, smallness_weight=2))
        for minutes, factor in ((60, 604), (600, 570), (None, 437)):
            asked = submit(time_limit_min=minutes)
            assert decide(asked, snapshot, TOKEN).site_factor == factor

    def test_a_qos_of_the_site_stands_for_a_class(self) -> None:
        """vision may not say class=high; who may name that QOS may have what it stands for."""
        answer = decide(submit(qos="Urgent"), SNAPSHOT, TOKEN)
        assert (answer.qos, answer.site_factor) == ("slicewise_vision", 675)
        assert answer.tag == "slicewise:1 token=ab12 tenant=vision class=high flexible"
        assert answer.notice == "QOS Urgent stands for class high here; the quota decides the rest."

    def test_what_the_script_says_goes_before_it(self) -> None:
        lines = ("#SLICEWISE class=normal",)
        answer = decide(submit(qos="urgent", directives=lines), SNAPSHOT, TOKEN)
        assert answer.site_factor == FACTOR
        assert answer.notice == "QOS urgent is not used for GPUs here: the quota decides."
        refused = decide(
            submit(qos="urgent", directives=("#SLICEWISE class=high",)), SNAPSHOT, TOKEN
        )
        assert refused.code == "SW-CLASS-FORBIDDEN"

    @pytest.mark.parametrize(
        ("uid", "account", "qos"), [(ALICE, "vision", "scavenger"), (BOB, "vision", "urgent")]
    )
    def test_who_may_not_name_it_is_refused(self, uid: int, account: str, qos: str) -> None:
        """Slurm would refuse it, but sees another QOS than was named."""
        accounts = {**SNAPSHOT.accounts_by_uid, BOB: {"vision": frozenset[str]()}}
        snapshot = replace(SNAPSHOT, accounts_by_uid=accounts)
        refused = decide(submit(uid=uid, account=account, qos=qos), snapshot, TOKEN)
        assert (refused.action, refused.code) == ("refuse", "SW-QOS")
        assert f"QOS {qos}" in refused.message

    def test_root_may_name_it_for_others(self) -> None:
        assert "class=high" in (decide(submit(uid=0, qos="urgent"), SNAPSHOT, TOKEN).tag or "")

    def test_who_is_not_known_has_no_right_to_it(self) -> None:
        """As while slurmdbd is away: Slurm does not judge, as it sees another QOS."""
        answer = decide(submit(uid=UNKNOWN, qos="urgent"), SNAPSHOT, TOKEN)
        assert answer.tag == "slicewise:1 token=ab12 tenant=vision flexible"
        assert answer.notice == "QOS urgent is not used for GPUs here: the quota decides."

    def test_the_class_of_a_service_counts(self) -> None:
        answer = decide(service(priority_class="low"), SNAPSHOT, TOKEN)
        tag = JobTag.find(answer.tag or "")
        assert tag is not None
        assert (tag.job_class, tag.service) == ("low", "bert")
        assert (answer.site_factor or 0) < FACTOR
        refused = decide(service(priority_class="high"), SNAPSHOT, TOKEN)
        assert refused.code == "SW-CLASS-FORBIDDEN"
        assert "priority_class=normal" in refused.hint

    def test_a_tenant_without_a_part_of_its_own_has_no_share(self) -> None:
        own = replace(SNAPSHOT, quotas={"vision": 0})
        assert decide(submit(qos="slicewise_vision_borrowed"), own, TOKEN).site_factor == 150


class TestAdmission:
    """What is counted forward between two looks at Slurm."""

    def admission(self) -> Admission:
        admission = Admission("enforce")
        admission.publish(SNAPSHOT, 1000.0)
        return admission

    def test_a_service_just_admitted_is_its_users(self) -> None:
        admission = self.admission()
        assert admission.submit(service()).action == "admit"
        assert "just submitted" in admission.submit(altered_uid(service())).message
        assert admission.submit(service()).action == "admit"
        assert admission.submit(altered_uid(service(name="other"))).action == "admit"

    def test_until_slurm_has_been_looked_at_long_after(self) -> None:
        admission = self.admission()
        admission.submit(service())
        admission.publish(SNAPSHOT, 1e12)
        assert admission.submit(altered_uid(service())).action == "admit"

    def test_until_slurm_has_shown_it(self) -> None:
        admission = self.admission()
        admission.submit(service())
        shown = replace(SNAPSHOT, services={("vision", "bert"): Living(900, ALICE)})
        admission.publish(shown, 1001.0)
        assert "job 900" in admission.submit(altered_uid(service())).message
        assert admission.submit(service()).action == "admit"
        admission.publish(SNAPSHOT, 1e12)
        assert admission.submit(altered_uid(service())).action == "admit"

    def test_a_check_leaves_nothing_behind(self) -> None:
        admission = self.admission()
        check = CheckRequest(tenant="vision", directives=directives())
        assert admission.check(check, ALICE).action == "admit"
        assert admission.check(check, ALICE).action == "admit"
        assert admission.submit(altered_uid(service())).action == "admit"
        assert admission.check(check, ALICE).code == "SW-SERVICE-EXISTS"

    def test_a_check_of_anothers_tenant_is_refused(self) -> None:
        check = CheckRequest(tenant="nlp", directives=directives(tenant="nlp"))
        with pytest.raises(InvalidInputError, match="no Slurm account of yours"):
            self.admission().check(check, ALICE)

    def test_a_check_by_who_is_unknown_to_slurm_is_refused(self) -> None:
        check = CheckRequest(tenant="vision", directives=directives())
        with pytest.raises(InvalidInputError, match="no Slurm account of yours"):
            self.admission().check(check, UNKNOWN)
        assert self.admission().check(check, 0).action == "admit"
        assert self.admission().submit(altered_uid(service())).action == "admit"

    @pytest.mark.parametrize("mode", ["observe", "advise"])
    def test_what_is_only_observed_counts_as_nothing(self, mode: Mode) -> None:
        admission = Admission(mode)
        admission.publish(SNAPSHOT, 1000.0)
        check = CheckRequest(tenant="vision", directives=directives())
        for _ in range(2):
            assert admission.submit(service()).action == "pass"
            assert admission.check(check, ALICE).action == "pass"
        assert admission.submit(submit()).action == "pass"

    def test_what_was_admitted_takes_from_the_guarantee(self) -> None:
        admission = self.admission()
        qos = [admission.submit(submit()).qos for _ in range(6)]
        assert qos == ["slicewise_vision"] * 4 + ["slicewise_vision_borrowed"] * 2
        assert admission.preview(submit()).qos == "slicewise_vision_borrowed"

    def test_until_slurm_has_been_looked_at_two_seconds_after(self) -> None:
        admission = self.admission()
        for _ in range(5):
            admission.submit(submit())
        assert admission.preview(submit()).qos == "slicewise_vision_borrowed"
        admission.publish(SNAPSHOT, 1000.0)
        assert admission.preview(submit()).qos == "slicewise_vision_borrowed"
        admission.publish(SNAPSHOT, 1e12)
        assert admission.preview(submit()).qos == "slicewise_vision"

    def test_what_a_look_shows_counts_once(self) -> None:
        admission = self.admission()
        tokens = [f"{number:02x}" for number in range(4)]
        for token in tokens:
            assert admission.submit(submit(token=token)).qos == "slicewise_vision"
        shown = replace(SNAPSHOT, guaranteed_used={"vision": 5000}, newest=frozenset(tokens))
        admission.publish(shown, 1000.0)
        assert admission.submit(submit()).qos == "slicewise_vision"
        assert admission.submit(submit()).qos == "slicewise_vision_borrowed"

    def test_a_service_exists_until_its_script_is_read(self) -> None:
        admission = self.admission()
        admission.submit(service().model_copy(update={"token": TOKEN}))
        admission.publish(replace(SNAPSHOT, newest=frozenset({TOKEN})), 1000.0)
        assert admission.submit(altered_uid(service())).code == "SW-SERVICE-EXISTS"

    def test_services_of_one_tenant_leave_places_to_others(self) -> None:
        admission = self.admission()
        bounded = replace(SNAPSHOT, rules=AdmissionRules(places=ServicePlaces(8, per_tenant=4)))
        admission.publish(bounded, 1000.0)
        answers = [admission.submit(service(name=f"s{number}")) for number in range(8)]
        assert [one.action for one in answers] == ["admit"] * 3 + ["refuse"] * 5
        assert answers[-1].code == "SW-SERVICE-PLACES"
        assert "'vision' has 4 services and may have at most 4" in answers[-1].message
        # A new generation of one takes its place.
        assert admission.submit(service(name="s0")).action == "admit"
        others = {("vision", f"s{number}"): Living(900 + number, ALICE) for number in range(4)}
        admission.publish(replace(bounded, services=others), 2e9)
        check = CheckRequest(tenant="vision", directives=directives(name="s9"))
        assert admission.check(check, ALICE).code == "SW-SERVICE-PLACES"
        free = altered(service(tenant="nlp", name="s9"), account="nlp", uid=UNKNOWN)
        assert admission.submit(free).action == "admit"

    def test_a_service_applied_in_a_loop_has_a_bounded_number_of_arrays(self) -> None:
        """The launcher looks at every slot of each, and retires them one by one, for everybody."""
        admission = self.admission()
        answers = [admission.submit(service()) for _ in range(1000)]
        assert [one.action for one in answers] == ["admit"] * 16 + ["refuse"] * 984
        assert answers[-1].code == "SW-SERVICE-ENDING"
        assert admission.submit(service(name="other")).action == "admit"
        shown = replace(SNAPSHOT, services={("vision", "bert"): Living(900, ALICE, arrays=15)})
        admission.publish(shown, 2e9)
        assert [admission.submit(service()).action for _ in range(2)] == ["admit", "refuse"]

    def test_a_services_slots_at_rest_take_nothing(self) -> None:
        admission = self.admission()
        for number in range(5):
            assert admission.submit(service(name=f"s{number}")).action == "admit"
        assert admission.preview(submit()).qos == "slicewise_vision"

    def test_the_token_of_slicewise_lua_is_kept(self) -> None:
        answer = self.admission().submit(submit(token=TOKEN))
        assert f"token={TOKEN} " in (answer.tag or "")

    def test_a_user_submits_services_at_a_bounded_rate(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Each leaves a row in the ledger, also if it is cancelled at once."""
        clock = SimpleNamespace(s=50.0)
        fake = SimpleNamespace(monotonic=lambda: clock.s, time=lambda: clock.s)
        monkeypatch.setattr(admit, "time", fake)
        admission = self.admission()
        for number in range(SUBMISSIONS.at_once):
            # What is refused, or only tried, is not counted.
            assert admission.preview(service()).action == "admit"
            assert admission.submit(service(name="a" * 80)).action == "refuse"
            assert admission.submit(service(name=f"s{number}")).action == "admit"
        refused = admission.submit(service())
        assert (refused.action, refused.code) == ("refuse", "SW-RATE")
        assert "60 s" in refused.hint
        assert admission.submit(altered_uid(service(name="other"))).action == "admit"
        assert admission.submit(submit()).action == "admit"
        clock.s += SUBMISSIONS.every_s
        assert admission.submit(service()).action == "admit"
        assert admission.submit(service()).code == "SW-RATE"

    def test_tokens_differ(self) -> None:
        admission = self.admission()
        assert admission.submit(submit()).tag != admission.submit(submit()).tag

    def test_before_the_first_look_nothing_is_admitted(self) -> None:
        assert Admission("enforce").submit(submit()).code == "SW-DAEMON-DOWN"

    def test_once_it_is_taken_out_of_slurm_jobs_pass_and_services_are_refused(self) -> None:
        """The QOS that they would get are gone."""
        admission = Admission("enforce")
        admission.publish(replace(SNAPSHOT, is_uninstalled=True), 1.0)
        answer = admission.submit(submit())
        assert (answer.action, answer.code) == ("pass", "")
        assert admission.submit(service()).code == "SW-UNINSTALLED"


SHARED = replace(SNAPSHOT, shared={"shard": Millislices(875)}, guaranteed_used={"vision": 6000})


@pytest.mark.parametrize(
    ("changes", "cost"),
    [
        ({"gres": "gres:shard:4"}, 3500),
        ({"gres": "shard"}, 875),
        ({"gres": "shard:2", "min_nodes": 2}, 3500),
        ({"gres": "shard:1", "exclusive": True}, 5000),
    ],
)
def test_parts_of_shared_gpus_with_a_price_are_admitted_on_the_own_quota(
    changes: dict[str, Any], cost: int
) -> None:
    """Vision may borrow, and its own 6 slices are held: a slice is borrowed, a shard waits."""
    assert decide(submit(), SHARED, TOKEN).qos == "slicewise_vision_borrowed"
    found = decision(submit(**changes), SHARED, TOKEN)
    assert (found.answer.action, found.answer.qos) == ("admit", "slicewise_vision")
    assert found.answer.gres is None
    assert found.cost_millislices == cost
    assert found.tag is not None
    assert not found.tag.is_flexible


@pytest.mark.parametrize(
    ("changes", "code"),
    [
        ({"gres": "mps:50"}, "SW-GRES"),
        ({"gres": "shard:1,mps:1"}, "SW-GRES"),
        ({"gres": "", "tres_per_task": "gres/shard:1"}, "SW-GRES"),
        ({"gres": "shard:a100:1"}, "SW-GRES"),
        ({"gres": "shard:8"}, "SW-QUOTA-EXCEEDED"),
        ({"gres": "shard:1", "directives": ("#SLICEWISE need=1GiB",)}, "SW-NEED-TOO-LARGE"),
        ({"gres": "shard:1", "directives": directives(), "array": "0-3"}, "SW-SERVICE"),
        ({"gres": "", "directives": directives(profile="shard")}, "SW-PROFILE-UNKNOWN"),
    ],
)
def test_what_shared_gpus_are_refused_for(changes: dict[str, Any], code: str) -> None:
    assert decide(submit(**changes), SHARED, TOKEN).code == code


BY_TYPE = replace(
    SNAPSHOT,
    guaranteed_types={"vision": {"1g.10gb": 2}},
    guaranteed_instances={"vision": {"1g.10gb": 1}},
)
NONE_LENT = replace(BY_TYPE, borrowing_limits={}, highest_limits={"vision": 6000})
OWN, BORROWED = "slicewise_vision", "slicewise_vision_borrowed"


@pytest.mark.parametrize(
    ("gres", "qos"),
    [("gpu:1g.10gb:1", OWN), ("gpu:1g.10gb:2", BORROWED), ("gpu:3g.40gb:1", OWN)],
)
def test_what_the_guarantee_has_no_more_instances_for_waits_for_a_loan(gres: str, qos: str) -> None:
    assert decide(submit(gres=gres), BY_TYPE, TOKEN).qos == qos
    assert decide(submit(gres=gres), SNAPSHOT, TOKEN).qos == OWN
    # It waits for its own where nothing may be borrowed.
    assert decide(submit(gres=gres), NONE_LENT, TOKEN).qos == OWN
    admitted = Recent(guaranteed_instances={"vision": {"1g.10gb": 1}})
    small = decision(submit(gres="gpu:1g.10gb:1"), BY_TYPE, TOKEN, admitted).answer
    assert small.qos == BORROWED


def test_more_instances_than_are_ever_guaranteed_start_on_loan_or_never() -> None:
    three = submit(gres="gpu:1g.10gb:3")
    answer = decide(three, BY_TYPE, TOKEN)
    assert answer.qos == BORROWED
    words = "One task has 3 instances of 1g.10gb, 'vision' is guaranteed 2"
    assert words in answer.notice
    for snapshot, request_ in ((NONE_LENT, three), (BY_TYPE, altered(three, qos=OWN))):
        answer = decide(request_, snapshot, TOKEN)
        assert (answer.action, answer.code) == ("refuse", "SW-QUOTA-EXCEEDED")
        assert words in answer.message
    none = {"guaranteed_types": {"vision": {"1g.10gb": 0}}}
    assert decide(service(), replace(BY_TYPE, **none), TOKEN).action == "admit"
    assert decide(service(), replace(NONE_LENT, **none), TOKEN).code == "SW-QUOTA-EXCEEDED"
