"""Each rule of admission, in its order of precedence."""

from dataclasses import replace
from typing import Any

import pytest

from cluster.errors import InvalidInputError
from cluster.jobs import JobTag
from cluster.units import Millislices
from cluster.wire import CheckRequest, SubmitAnswer, SubmitRequest
from slurm_plugin.admit import Admission
from slurm_plugin.decide.admission import (
    GpuType,
    Mode,
    Snapshot,
    as_mode_allows,
    check_membership,
    decide,
    submission_of,
)

ALICE, UNKNOWN = 61001, 7
TOKEN = "ab12"  # noqa: S105 -- a mark, no secret


def gpu(name: str, cost: int, gib: int | None, free: int = 1) -> GpuType:
    memory = None if gib is None else gib * 1024
    return GpuType(name, Millislices(cost), memory, 7, free)


SNAPSHOT = Snapshot(
    partitions=frozenset({"gpu", "mig"}),
    quotas={"vision": 6000, "nlp": 1000},
    borrowing_limits={"vision": 2000, "nlp": 0},
    type_limits={"vision": {"1g.20gb": 1}},
    used={"vision": 1500},
    gpu_types={
        t.name: t
        for t in (gpu("1g.10gb", 1000, 9), gpu("1g.20gb", 1750, 19), gpu("3g.40gb", 3500, 39))
    },
    services={("vision", "taken"): 814},
    accounts_by_uid={ALICE: frozenset({"vision", "guest"})},
)

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
    return SubmitRequest(v=2, op="submit", **(values | changes))


def service(**changes: str | None) -> SubmitRequest:
    return submit(directives=directives(**changes), array="0-3", gres="")


def altered(request: SubmitRequest, **changes: str) -> SubmitRequest:
    return request.model_copy(update=changes)


def test_a_plain_job_is_admitted() -> None:
    assert decide(submit(), SNAPSHOT, TOKEN) == SubmitAnswer(
        action="admit",
        gres=None,
        qos="slicewise_vision",
        site_factor=750,
        tag="slicewise:1 token=ab12 tenant=vision",
        hold=False,
    )


def test_a_service_is_admitted_held_and_typed() -> None:
    assert decide(service(), SNAPSHOT, TOKEN) == SubmitAnswer(
        action="admit",
        gres="gpu:1g.10gb:1",
        qos="slicewise_vision",
        site_factor=750,
        tag="slicewise:1 token=ab12 tenant=vision service=bert",
        hold=True,
    )


@pytest.mark.parametrize("gres", ["gres:gpu:1g.10gb:1", "gres:gpu:3g.40gb:2,gres:gpu:1g.10gb:1"])
def test_a_tenant_that_may_borrow_is_admitted_into_the_borrowed_qos(gres: str) -> None:
    answer = decide(submit(qos="slicewise-borrowed", gres=gres), SNAPSHOT, TOKEN)
    assert (answer.action, answer.qos) == ("admit", "slicewise-borrowed")


@pytest.mark.parametrize(
    ("request_", "code", "words"),
    [
        (submit(account="nlp", uid=UNKNOWN), "SW-QUOTA-BORROW", "'nlp' may not borrow"),
        (submit(gres="gres:gpu:1g.10gb:9"), "SW-QUOTA-EXCEEDED", "is 6, with 2 that it may borrow"),
    ],
)
def test_refused_in_the_borrowed_qos(request_: SubmitRequest, code: str, words: str) -> None:
    answer = decide(altered(request_, qos="slicewise-borrowed"), SNAPSHOT, TOKEN)
    assert (answer.action, answer.code) == ("refuse", code)
    assert words in answer.message


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
        submit(gres="gres:gpu:3g.40gb:1,gres:gpu:1g.10gb:2"),
        submit(gres="gpu:1g.10gb:1,license:matlab"),
        submit(qos="normal", array="0-99"),
    ],
)
def test_admitted_in_the_tenants_qos(request_: SubmitRequest) -> None:
    answer = decide(request_, SNAPSHOT, TOKEN)
    assert (answer.action, answer.qos) == ("admit", "slicewise_vision")
    assert JobTag.find(answer.tag or "") == JobTag(TOKEN, "vision")


REFUSALS = [
    # the request, the code, what the text must say
    (altered(service(), partition="cpu"), "SW-SERVICE-PARTITION", ["'cpu'", "gpu, mig"]),
    (submit(directives=("#SLICEWISE bad",)), "SW-DIRECTIVE", ["bad"]),
    (service(profile=None), "SW-SERVICE", ["profile, need_gib"]),
    (service(max_replicas="-1"), "SW-SERVICE", ["max_replicas", "-1"]),
    (service(min_replicas="5"), "SW-SERVICE", ["min_replicas", "5", "4"]),
    (service(model_repository="/a;b"), "SW-SERVICE", ["model_repository"]),
    (service(colour="red"), "SW-SERVICE", ["colour"]),
    (service(tenant="nlp"), "SW-SERVICE-TENANT", ["'nlp'", "'vision'", "--account=nlp"]),
    (submit(account="guest"), "SW-QUOTA-NONE", ["'guest'", "tenant-quota set guest"]),
    (submit(account="unknown"), "SW-TENANT-UNKNOWN", ["'unknown'", "guest, vision"]),
    (submit(account="unknown", uid=UNKNOWN), "SW-QUOTA-NONE", ["'unknown'"]),
    (submit(gres="gpu:a:b:c"), "SW-GRES", ["gpu:a:b:c"]),
    (submit(gres="gpu:2"), "SW-GRES-TYPE", ["gpu:TYPE:2", "1g.10gb", "3g.40gb"]),
    (submit(gres="", tres_per_job="gres/gpu:1"), "SW-GRES-TYPE", ["1g.10gb"]),
    (submit(gres="gpu:9g.99gb:1"), "SW-PROFILE-UNKNOWN", ["'9g.99gb'", "1g.10gb (1), "]),
    (service(profile="9g.99gb"), "SW-PROFILE-UNKNOWN", ["profile", "'9g.99gb'"]),
    (
        altered(service(), gres="gpu:3g.40gb:1"),
        "SW-SERVICE-GRES",
        ["gpu:3g.40gb:1", "gpu:1g.10gb:1"],
    ),
    (altered(service(), gres="gpu:1g.10gb:2"), "SW-SERVICE-GRES", ["gpu:1g.10gb:2"]),
    (altered(service(), tres_per_task="gpu:1"), "SW-SERVICE-GRES", ["gpu:1"]),
    (service(profile=None, need_gib="40"), "SW-NEED-TOO-LARGE", ["need_gib", "40", "39.0 GiB"]),
    (submit(gres="gpu:1g.10gb:7"), "SW-QUOTA-EXCEEDED", ["7 slices", "6", "'vision'"]),
    (submit(account="nlp", gres="gpu:1g.20gb:1"), "SW-QUOTA-EXCEEDED", ["1.75 slices", "is 1:"]),
    (submit(gres="gpu:1g.20gb:2"), "SW-QUOTA-EXCEEDED", ["2 instances of 1g.20gb", "may have 1:"]),
    (service(name="taken"), "SW-SERVICE-EXISTS", ["'taken'", "job 814"]),
    (altered(service(), array="0-4"), "SW-SERVICE-ARRAY", ["0-3", "0-4"]),
    (altered(service(), array=""), "SW-SERVICE-ARRAY", ["no array"]),
    (altered(service(), array="0-3%2"), "SW-SERVICE-ARRAY", ["0-3%2"]),
    (altered(service(max_replicas="1"), array="1"), "SW-SERVICE-ARRAY", ["0-0"]),
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
    ("observe", submit(gres="gpu:2"), "pass", "SW-GRES-TYPE"),
    ("observe", submit(account="guest"), "pass", "SW-QUOTA-NONE"),
    ("observe", submit(partition="cpu"), "pass", ""),
    ("observe", service(), "refuse", "SW-SERVICE-MODE"),
    ("observe", service(max_replicas="-1"), "refuse", "SW-SERVICE"),
    ("advise", submit(), "pass", ""),
    ("advise", submit(gres="gpu:2"), "refuse", "SW-GRES-TYPE"),
    ("advise", service(), "refuse", "SW-SERVICE-MODE"),
    ("enforce", submit(), "admit", ""),
    ("enforce", submit(gres="gpu:2"), "refuse", "SW-GRES-TYPE"),
    ("enforce", service(), "admit", ""),
]


@pytest.mark.parametrize(("mode", "request_", "action", "code"), MODES)
def test_what_a_mode_allows(mode: Mode, request_: SubmitRequest, action: str, code: str) -> None:
    decided = decide(request_, SNAPSHOT, TOKEN)
    answer = as_mode_allows(decided, request_, mode)
    assert (answer.action, answer.code) == (action, code)
    if action == "pass":
        assert answer.tag == decided.tag


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
    assert submission_of(check, ALICE, SNAPSHOT.partitions) == service()


class TestAdmission:
    """What is counted forward between two looks at Slurm."""

    def admission(self) -> Admission:
        admission = Admission("enforce")
        admission.publish(SNAPSHOT, 1000.0)
        return admission

    def test_a_service_just_admitted_exists(self) -> None:
        admission = self.admission()
        assert admission.submit(service()).action == "admit"
        assert admission.submit(service()).code == "SW-SERVICE-EXISTS"
        assert admission.submit(service(name="other")).action == "admit"

    def test_until_slurm_has_been_looked_at_long_after(self) -> None:
        admission = self.admission()
        admission.submit(service())
        admission.publish(SNAPSHOT, 1e12)
        assert admission.submit(service()).action == "admit"

    def test_until_slurm_has_shown_it(self) -> None:
        admission = self.admission()
        admission.submit(service())
        shown = replace(SNAPSHOT, services={("vision", "bert"): 900})
        admission.publish(shown, 1001.0)
        assert "job 900" in admission.submit(service()).message
        admission.publish(SNAPSHOT, 1002.0)
        assert admission.submit(service()).action == "admit"

    def test_a_check_leaves_nothing_behind(self) -> None:
        admission = self.admission()
        check = CheckRequest(tenant="vision", directives=directives())
        assert admission.check(check, ALICE).action == "admit"
        assert admission.check(check, ALICE).action == "admit"
        assert admission.submit(service()).action == "admit"
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
            assert admission.submit(service()).code == "SW-SERVICE-MODE"
            assert admission.check(check, ALICE).code == "SW-SERVICE-MODE"
        assert admission.submit(submit()).action == "pass"

    def test_tokens_differ(self) -> None:
        admission = self.admission()
        assert admission.submit(submit()).tag != admission.submit(submit()).tag

    def test_before_the_first_look_nothing_is_admitted(self) -> None:
        assert Admission("enforce").submit(submit()).code == "SW-DAEMON-DOWN"
