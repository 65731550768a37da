"""Tests what an overview says of a cluster, and to which reader."""

from dataclasses import replace

import pytest
from builders.nodes import a_node
from builders.overview_world import (
    ALICE,
    POLICY,
    ROOT,
    facts,
    replica,
    report,
    service,
)
from builders.service_views import slots_in
from builders.why_world import LARGE, NOW_S, SMALL, job, running

from slicewise.cluster.language.findings import Severity
from slicewise.cluster.language.gpus.layouts import Placement
from slicewise.cluster.language.jobs import JobState
from slicewise.cluster.language.keep_warm import WarmDay
from slicewise.cluster.language.periods import Period
from slicewise.cluster.language.units import MillisliceSeconds
from slicewise.cluster.rpc.overview_messages import (
    AttentionItem,
    MonthNow,
    OverviewAnswer,
    PowerNow,
    ServiceNow,
    TenantThisMonth,
)
from slicewise.slurm_plugin.api.access import Principal
from slicewise.slurm_plugin.rules.accounting.money_budgets import MoneyBudgetStatus
from slicewise.slurm_plugin.rules.overview.gpus import sharing_types
from slicewise.slurm_plugin.rules.overview.overview import overview
from slicewise.slurm_plugin.rules.overview.overview_facts import (
    OverviewFacts,
    SurveyedGpu,
    seats_of,
)
from slicewise.slurm_plugin.rules.quota.overcommitment import Overcommitment
from slicewise.slurm_plugin.rules.quota.types import Budget, Policy
from slicewise.slurm_plugin.rules.round.barred import BarredJob


def found(answer: OverviewAnswer) -> list[tuple[Severity, str, str, str]]:
    return [(one.severity, one.code, one.about, one.command) for one in answer.attention]


def item(answer: OverviewAnswer, code: str) -> AttentionItem:
    (one,) = [one for one in answer.attention if one.code == code]
    return one


# -- Slices


def test_the_states_of_slices_add_up_to_the_capacity():
    borrowed = running(2, qos="slicewise_nlp_borrowed", account="nlp")
    nodes = (
        a_node("node1", "MIXED", held=2),
        a_node("node2", "MIXED", "DRAIN", held=3),
        a_node("node3", "DOWN", "NOT_RESPONDING", held=1),
        a_node("node4", "IDLE", "DRAIN", "INVALID_REG"),
        a_node("elsewhere", partitions=frozenset({"cpu"})),
    )
    slices = overview(facts(running(1), borrowed, nodes=nodes), ROOT).slices
    assert slices.capacity_millislices == 28_000
    assert slices.used_millislices == 1000 + 3000
    assert slices.lent_millislices == 1000
    assert slices.idle_millislices == 5000
    assert slices.draining_millislices == 4000
    assert slices.down_millislices == 14_000
    states = slices.model_dump().values()
    assert sum(states) == 2 * slices.capacity_millislices


def test_powered_down_nodes_are_idle_and_need_nobody():
    nodes = (a_node("n1", "IDLE", "POWERED_DOWN"), a_node("n2", "MIXED", "POWERING_UP", held=1))
    answer = overview(facts(nodes=nodes), ROOT)
    slices = answer.slices
    assert (slices.used_millislices, slices.idle_millislices) == (1000, 13_000)
    assert slices.down_millislices == 0
    assert {gpu.node: gpu.condition for gpu in answer.gpus} == {
        "n1": "powered down",
        "n2": "powering up",
    }
    assert not [one for one in answer.attention if one.code == "SW-NODE-DOWN"]


def test_what_is_not_cut_is_idle():
    cut = a_node("node1", gpus={LARGE: 1, "pad1": 6}, gpus_allotted={LARGE: 1})
    slices = overview(facts(nodes=(cut,)), ROOT).slices
    assert (slices.used_millislices, slices.idle_millislices) == (3500, 3500)


# -- Watts


def test_operators_see_what_boards_draw_and_how_many_nodes_have_a_meter():
    nodes = (
        a_node("gpu1"),
        a_node("gpu2", "DOWN", partitions=frozenset({"elsewhere"})),
        a_node("gpu3", gpus={}, untyped_gpus=1),
        a_node("cpu1", gpus={}),
    )
    now = facts(nodes=nodes, boards_mw={"gpu1": (70_000, 500_000), "gpu2": ()})
    told = PowerNow(power_mw=570_000, boards=2, metered_nodes=1, gpu_nodes=3)
    assert overview(now, ROOT).power == told
    assert told.words == "0.57 kW of 2 boards on 1 of 3 nodes"
    # Users do not see what is nobody's either.
    assert overview(now, ALICE).power is None
    assert overview(facts(nodes=nodes, boards_mw={"gpu2": ()}), ROOT).power is None


# -- Tenants


def test_tenants_hold_borrow_lend_and_wait_with_those_below_them():
    now = facts(
        running(1),
        running(2, account="nlp", qos="slicewise_nlp_borrowed"),
        job(8, "QOSGrpBilling"),
        job(9, "Resources", account="nlp", untouched=frozenset({0, 1, 2}), array_job_id=9),
        job(10, "JobHeldUser", held=True),
        job(11, "Dependency"),
        loans={("bio", "nlp"): 2000},
    )
    by_name = {one.name: one for one in overview(now, ROOT).tenants}
    lab, nlp, vision, bio = (by_name[name] for name in ("lab", "nlp", "vision", "bio"))
    assert (lab.depth, nlp.depth, bio.depth) == (0, 1, 0)
    assert (lab.nominal_millislices, nlp.nominal_millislices) == (7000, 3000)
    assert (nlp.borrowed_millislices, lab.borrowed_millislices, bio.lent_millislices) == (
        2000,
        2000,
        2000,
    )
    assert (lab.in_use_millislices, vision.in_use_millislices) == (2000, 1000)
    # A loan of two slices, of which a job holds one.
    assert (nlp.on_loan_millislices, lab.on_loan_millislices) == (1000, 1000)
    assert vision.on_loan_millislices == 0
    assert (nlp.waiting_jobs, nlp.waiting_millislices) == (3, 3000)
    assert (lab.waiting_jobs, lab.waiting_millislices, bio.waiting_jobs) == (4, 4000, 0)
    assert nlp.limit_millislices == 5000


def test_before_limits_are_compiled_nothing_is_said_of_limits():
    (vision,) = overview(facts(standings={}), ALICE).tenants
    assert (vision.limit_millislices, vision.lent_millislices) == (None, 0)


def test_a_user_sees_the_own_tenant_in_full_and_the_others_as_sums():
    now = facts(
        running(1),
        running(2, account="nlp", user="bob", uid=2),
        running(3, account="bio", user="carol", uid=3),
        job(8, "Resources"),
        job(9, "Resources", account="nlp", user="bob", uid=2),
        services=(service(), service("nlp/secret", 900, user="bob")),
        reports={("nlp", "secret"): report("nlp/secret", failed_starts=3, ready=())},
    )
    answer = overview(now, ALICE)
    assert [(one.name, one.depth) for one in answer.tenants] == [("vision", 0)]
    assert answer.others is not None
    assert answer.others.model_dump() == {
        "tenants": 3,
        "nominal_millislices": 10_000,
        "in_use_millislices": 2000,
        "waiting_jobs": 1,
        "waiting_millislices": 1000,
    }
    assert [one.name for one in answer.services] == ["bert"]
    assert answer.other_services == 1
    assert [one.job for one in answer.waiting] == ["8"]
    assert [one.job for one in answer.gpus[0].instances if one.is_held] == ["1", "", ""]
    text = answer.model_dump_json()
    for hidden in ("nlp", "bio", "bob", "carol", "secret", '"2"', '"3"', '"9"'):
        assert hidden not in text
    assert answer.slices == overview(now, ROOT).slices


def test_operators_see_all_and_no_sums():
    answer = overview(facts(running(1, account="nlp", user="bob", uid=2)), ROOT)
    assert answer.others is None
    assert [one.name for one in answer.tenants] == ["bio", "lab", "nlp", "vision"]
    assert answer.gpus[0].instances[0].tenant == "nlp"


def test_who_has_left_a_tenant_sees_own_jobs_and_services_of_it():
    outsider = replace(ALICE, tenants=frozenset())
    answer = overview(facts(running(1), job(8, "Resources"), services=(service(),)), outsider)
    assert answer.tenants == ()
    assert [one.job for one in answer.waiting] == ["8"]
    assert [one.name for one in answer.services] == ["bert"]
    assert answer.gpus[0].instances[0].job == "1"


def test_waiting_jobs_stand_in_slurm_s_order_and_are_bounded():
    jobs = [job(100 + n, "Priority", priority=n) for n in range(250)]
    answer = overview(facts(*jobs, nodes=()), ROOT)
    assert len(answer.waiting) == 200
    assert (answer.waiting[0].job, answer.waiting[-1].job) == ("349", "150")


# -- Services


def shown(*living: object, **reported: object) -> ServiceNow:
    views = living or (service(),)
    reports = (
        {("vision", "bert"): report(**reported)} if reported.get("desired_replicas") != -1 else {}
    )
    (one,) = overview(facts(services=views, reports=reports), ROOT).services
    return one


def test_a_service_says_what_it_has_what_it_wants_and_why():
    one = shown()
    assert (one.ready, one.starting, one.min_replicas, one.max_replicas) == (1, 0, 1, 3)
    assert (one.desired_replicas, one.why, one.backlog, one.in_flight) == (2, "3 wait", 3, 4)
    assert (one.p95_ms, one.rate_per_s, one.condition) == (42.0, 12.5, "ready")
    day = WarmDay("2026-11-30", 360_000, 7)
    warm = shown(warm_replicas=0.5, warm_days=(day,))
    assert (warm.warm_replicas, warm.warm_days) == (0.5, (day,))
    more = shown(service(**slots("running", "released", "running", "held")))
    assert (more.ready, more.starting, more.max_replicas) == (1, 2, 4), "one is not ready yet"


def test_without_the_launcher_s_word_a_running_replica_counts_as_ready():
    one = shown(desired_replicas=-1)
    assert (one.ready, one.desired_replicas, one.backlog, one.condition) == (1, None, None, "ready")


def slots(*states: str) -> dict[str, object]:
    return {"slots": slots_in(*states)}  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("views", "reported", "condition"),
    [
        (
            (service(**slots("held", "held")),),
            {"ready": (), "desired_replicas": 0, "queued": 0, "held": 0},
            "asleep",
        ),
        ((service(**slots("released")),), {"ready": (), "desired_replicas": 1}, "waking"),
        ((service(**slots("held")),), {"ready": (), "is_unpaid": True}, "unpaid"),
        ((service(**slots("running")),), {"ready": (), "failed_starts": 2}, "failing"),
        ((service(**slots("running")),), {"failed_starts": 2}, "ready"),
        ((service(), service(array=700)), {}, "rolling"),
        ((service(order={"delete_s": 5.0}),), {}, "ending"),
    ],
)
def test_the_condition_of_a_service(views, reported, condition):
    assert shown(*views, **reported).condition == condition


def test_failures_of_an_older_generation_do_not_count():
    assert shown(array_job_id=700, failed_starts=3, ready=()).condition == "waking"


# -- GPUs


def seats(now: OverviewFacts) -> list[tuple[str, int | None, list[tuple[str, bool, str]]]]:
    return [
        (one.node, one.gpu, [(i.gres_type, i.is_held, i.service or i.job) for i in one.instances])
        for one in overview(now, ROOT).gpus
    ]


def test_it_is_drawn_who_sits_on_which_instance():
    free = (SMALL, False, "")
    now = facts(replica(900), replace(running(5), start_s=1), nodes=(a_node("node1", held=2),))
    assert seats(now) == [
        ("node1", None, [(SMALL, True, "5"), (SMALL, True, "vision/bert"), *[free] * 5])
    ]


def test_slurm_s_details_say_which_job_has_which_instance():
    jobs = (running(5), replace(running(6), start_s=1), running(7))
    indices = {5: {"node1": frozenset({0})}, 7: {"node1": frozenset({2}), "node2": frozenset({1})}}
    found = seats(facts(*jobs, indices=indices))[0][2]
    assert [who for _, _, who in found] == ["5", "6", "7", "", "", "", ""]


def test_what_two_jobs_claim_or_no_job_holds_is_not_believed():
    jobs = (running(5), replace(running(6), start_s=1))
    lies = {5: {"node1": frozenset({1, 4})}, 6: {"node1": frozenset({1})}}
    found = seats(facts(*jobs, indices=lies))[0][2]
    assert [who for _, _, who in found] == ["6", "5", "", "", "", "", ""]


def test_slurm_is_asked_only_about_jobs_that_share_a_type_on_a_node():
    large = running(8, tres={f"gres/gpu:{LARGE}": "1"})
    elsewhere = replace(running(9), nodes=("node2",))
    other = running(10, partition="cpu")
    jobs = (running(5), running(6), large, elsewhere, other, job(7, "Resources"))
    assert [one.job_id for one in sharing_types(seats_of(jobs, frozenset({"gpu"})))] == [5, 6]


def test_slurm_s_indices_say_which_instances_are_held():
    cut = a_node(
        "node1",
        gpus={LARGE: 1, "pad1": 2, SMALL: 3},
        gpus_allotted={SMALL: 1},
        gpus_held=frozenset({4}),
    )
    assert seats(facts(running(5), nodes=(cut,)))[0][2] == [
        (LARGE, False, ""),
        (SMALL, False, ""),
        (SMALL, True, "5"),
        (SMALL, False, ""),
    ]


def test_a_held_instance_of_no_known_job_is_held_and_one_of_an_ending_job_is_its():
    now = facts(nodes=(a_node("node1", held=1),))
    assert seats(now)[0][2][0] == (SMALL, True, "")
    ending = replace(running(5), state=JobState.COMPLETING)
    assert seats(facts(ending, nodes=(a_node("node1"),)))[0][2][0] == (SMALL, True, "5")


def test_surveyed_gpus_are_drawn_to_scale():
    cut = a_node(
        "node1",
        "MIXED",
        gpus={LARGE: 1, SMALL: 2},
        gpus_allotted={LARGE: 1},
        gpus_held=frozenset({0}),
    )
    places = (
        (Placement(SMALL, 0, 1), 1),
        (Placement(SMALL, 1, 1), 2),
        (Placement(LARGE, 4, 4), 0),
    )
    surveyed = {"node1": (SurveyedGpu(3, 8, places),)}
    (gpu,) = overview(
        facts(running(5, tres={f"gres/gpu:{LARGE}": "1"}), nodes=(cut,), surveyed=surveyed), ROOT
    ).gpus
    assert (gpu.gpu, gpu.memory_slices) == (3, 8)
    assert [(i.start, i.size, i.job) for i in gpu.instances] == [
        (0, 1, ""),
        (1, 1, ""),
        (4, 4, "5"),
    ]


def test_a_survey_that_no_longer_fits_what_slurm_has_is_not_drawn():
    surveyed = {"node1": (SurveyedGpu(0, 8, ((Placement(SMALL, 0, 1), 0),)),)}
    (gpu,) = overview(facts(surveyed=surveyed), ROOT).gpus
    assert (gpu.gpu, len(gpu.instances)) == (None, 7)


# -- Attention


def test_nothing_needs_attention_where_all_is_well():
    now = facts(running(1), services=(service(),), reports={("vision", "bert"): report()})
    assert overview(now, ROOT).attention == ()


def test_what_is_wrong_stands_with_the_command_that_mends_it_the_worst_first():
    nodes = (
        a_node("n1", "IDLE", "DRAIN"),
        a_node("n2", "DOWN", reason="Not responding"),
        a_node("n3", "INVAL", reason="gres count is too low"),
    )
    now = facts(
        nodes=nodes,
        services=(service(),),
        launcher_silent_s=90.0,
        is_uninstalled=True,
        unadmitted=2,
        observed_s=NOW_S - 60,
        complete=False,
    )
    assert found(overview(now, ROOT)) == [
        (Severity.ERROR, "SW-DAEMON-BLIND", "", "slicewise doctor --section daemon"),
        (Severity.ERROR, "SW-UNINSTALLED", "", "slicewise compile --again"),
        (Severity.ERROR, "SW-LAUNCHER-DOWN", "", "systemctl status slicewise-launcher"),
        (Severity.ERROR, "SW-NODE-DOWN", "n2", "scontrol update NodeName=n2,n3 State=RESUME"),
        (Severity.WARNING, "SW-SCRIPT-PASSED", "", "slicewise doctor --section script"),
        (Severity.WARNING, "SW-NODE-DOWN", "n1", "scontrol update NodeName=n1 State=RESUME"),
    ]
    assert [one.what for one in overview(now, ROOT).attention if one.code == "SW-NODE-DOWN"] == [
        # sinfo -R shows nothing of an invalid node.
        "n2, n3 are down, 14 slices with it (n2: Not responding; n3: gres count is too low)",
        "n1 is drained, nothing new starts on 7 slices",
    ]
    assert overview(now, ALICE).attention == ()


def test_a_ledger_that_is_silent_is_told_of_to_operators_once_it_is_no_pause():
    silent = facts(ledger_silent_s=180.0)
    assert found(overview(silent, ROOT)) == [
        (Severity.ERROR, "SW-DATABASE-DOWN", "", "slicewise doctor --section ledger")
    ]
    assert (
        overview(silent, ROOT)
        .attention[0]
        .what.startswith("PostgreSQL has not answered the daemon for 180 s")
    )
    assert overview(silent, ALICE).attention == ()
    assert overview(facts(ledger_silent_s=20.0), ROOT).attention == ()


def test_the_slices_of_a_drained_node_are_those_of_its_boards():
    cut = a_node("n1", "IDLE", "DRAIN", gpus={LARGE: 1, SMALL: 3, "pad1": 3})
    answer = overview(facts(nodes=(cut,)), ROOT)
    assert "nothing new starts on 7 slices" in answer.attention[0].what
    assert answer.slices.draining_millislices == 7000


def test_an_old_look_is_told_of():
    assert item(overview(facts(observed_s=NOW_S - 31), ROOT), "SW-DAEMON-BLIND").what == (
        "the daemon looked at Slurm 31 s ago"
    )


def test_services_that_fail_or_are_kept_back_are_told_of_to_those_who_see_them():
    failing = {("vision", "bert"): report(failed_starts=3, ready=())}
    now = facts(services=(service(),), reports=failing)
    assert found(overview(now, ALICE)) == [
        (Severity.ERROR, "SW-SERVICE-FAILING", "vision/bert", "slicewise service logs vision/bert")
    ]
    kept = facts(
        services=(service(),),
        reports={("vision", "bert"): report()},
        kept_back={814: frozenset({1})},
    )
    assert found(overview(kept, ALICE)) == [
        (Severity.WARNING, "SW-WAITING", "vision/bert", "slicewise why vision/bert")
    ]
    assert "has 1 of 2 replicas that it wants" in overview(kept, ROOT).attention[0].what


def with_budget(**changes: int) -> Policy:
    budget = Budget(Period.MONTH, MillisliceSeconds(3_600_000), **changes)  # type: ignore[arg-type]
    return {**POLICY, "lab": replace(POLICY["lab"], budget=budget)}


def test_a_budget_that_is_used_up_or_will_be_is_told_of():
    paid = {"policy": with_budget(), "resets_s": {"lab": NOW_S + 7200}}
    fast = facts(running(1), left_millislice_s={"lab": 3_600_000}, **paid)
    assert found(overview(fast, ROOT)) == [
        (
            Severity.WARNING,
            "SW-BUDGET-LOW",
            "lab",
            "slicewise budget grant lab --amount SLICE_HOURS --reason WHY",
        )
    ]
    assert overview(facts(left_millislice_s={"lab": 3_600_000}, **paid), ROOT).attention == ()
    later = {**paid, "resets_s": {"lab": NOW_S + 200_000}}
    slow = facts(running(1), left_millislice_s={"lab": 100_000_000}, **later)
    assert item(overview(slow, ROOT), "SW-BUDGET-LOW").severity is Severity.HINT
    empty = facts(running(1), left_millislice_s={"lab": 0}, **paid)
    assert item(overview(empty, ROOT), "SW-BUDGET-LOW").severity is Severity.ERROR
    lab = replace(ALICE, tenants=frozenset({"lab"}))
    assert item(overview(empty, lab), "SW-BUDGET-LOW").command == "slicewise budget show lab"
    (vision,) = overview(empty, ALICE).tenants
    assert (vision.payer, vision.left_millislice_s, vision.resets_s) == ("lab", 0, NOW_S + 7200)


def test_an_overdraft_counts_as_left():
    policy = with_budget(overdraft=1000)
    now = facts(left_millislice_s={"lab": -500}, policy=policy, resets_s={"lab": None})
    assert overview(now, ROOT).attention == ()


def test_a_budget_in_money_is_told_of_from_the_part_on_of_which_the_tariff_warns():
    def told(left: int, reader: Principal) -> list[tuple[Severity, str]]:
        budget = MoneyBudgetStatus("vision", 10_500_000, left, 0.8, 0)
        answer = overview(facts(money_budgets=(budget,)), reader)
        return [(one.severity, one.what) for one in answer.attention]

    warned = [(Severity.WARNING, "vision has used 80 % of its budget in money")]
    for reader in (ROOT, ALICE):
        assert told(2_100_000, reader) == warned
        assert told(2_100_001, reader) == []
    # Never rounded up to all of it; and what is beyond it is said.
    assert "99 %" in told(1, ALICE)[0][1]
    assert "120 %" in told(-2_100_000, ALICE)[0][1]
    assert told(0, replace(ALICE, tenants=frozenset({"nlp", "lab"}))) == []


def test_of_the_month_a_reader_sees_the_own_tenants_and_operators_what_is_nobody_s():
    month = MonthNow(
        month="2026-11",
        zone="UTC",
        currency="EUR",
        seen_s=0,
        tenants=tuple(TenantThisMonth(tenant=name, millionths=1) for name in ("", "nlp", "vision")),
    )

    def shown(reader: Principal) -> list[str]:
        found = overview(facts(month=month), reader).month
        return [each.tenant for each in found.tenants] if found else []

    assert shown(ROOT) == ["", "nlp", "vision"]
    assert shown(replace(ALICE, tenants=frozenset({"vision", ""}))) == ["vision"]
    assert shown(replace(ALICE, tenants=frozenset())) == []


def test_quotas_beyond_the_cluster_are_told_with_the_nodes_that_have_gone():
    over = Overcommitment(2000, 7000, NOW_S - 7200, frozenset({"gpu3", "gpu7"}))
    answer = overview(facts(overcommitment=over), ROOT)
    assert found(answer) == [
        (Severity.WARNING, "SW-QUOTA-CAPACITY", "", "slicewise doctor --section limits")
    ]
    assert answer.attention[0].what.startswith(
        "quotas guarantee 9 slices, 2 slices more than there are; gone from Slurm: gpu3, gpu7,"
        " since 2.0 h at least"
    )
    assert overview(facts(overcommitment=over), ALICE).attention == ()


def test_jobs_that_had_quota_and_did_not_start_are_told_with_what_keeps_them():
    jobs = [job(n, "QOSGrpBilling", submit_s=1, eligible_s=1) for n in (8, 9)]
    barred = {n: BarredJob("AssocGrpBillingMinutes", int(NOW_S) + 600) for n in (8, 9)}
    own = facts(*jobs, nodes=(), barred=barred, grace_s=10**9)
    answer = overview(own, ROOT)
    assert found(answer) == [(Severity.WARNING, "SW-WAITING", "vision", "slicewise why 8")]
    assert answer.attention[0].what == (
        "2 jobs of vision had quota and did not start, for AssocGrpBillingMinutes: none is lent for"
        " that again within 10 min"
    )


def test_guaranteed_jobs_that_wait_beyond_the_grace_time_are_told_of():
    late, new = NOW_S - 400, NOW_S - 300
    old = job(8, "Resources", submit_s=late, eligible_s=late)
    young = job(9, "Resources", submit_s=new, eligible_s=new)
    above = job(10, "QOSGrpBilling", submit_s=1, eligible_s=1, tres={f"gres/gpu:{LARGE}": "2"})
    answer = overview(facts(old, young, above, nodes=()), ROOT)
    assert found(answer) == [(Severity.WARNING, "SW-WAITING", "vision", "slicewise why 8")]
    assert answer.attention[0].what == (
        "1 job of vision waits within its guaranteed quota, the first for 7 min"
    )


def test_jobs_beyond_what_running_jobs_leave_of_the_guaranteed_quota_are_not_told_of():
    waits = [job(n, "Resources", submit_s=1, eligible_s=1) for n in (8, 9)]
    holding = running(7, tres={f"gres/gpu:{SMALL}": "3"})
    answer = overview(facts(holding, *waits, nodes=()), ROOT)
    assert [one.about for one in answer.attention] == ["vision"]
    assert answer.attention[0].what.startswith("1 job of vision waits")
