"""Tests the limits that Slurm should have by the policy, and the commands that set them."""

from collections.abc import Iterable, Mapping
from dataclasses import replace
from fractions import Fraction

import pytest
from builders.tenants import tenant
from stand_ins.scripted import job as slot

from slicewise.cluster.language.billing import BillingUnit
from slicewise.cluster.language.errors import InvalidInputError
from slicewise.cluster.language.jobs import JobState, JobView
from slicewise.cluster.language.slurm.interface import Association, Qos
from slicewise.cluster.language.units import Millislices
from slicewise.slurm_plugin.rules.common.qos_names import borrowed_qos, qos_name
from slicewise.slurm_plugin.rules.limits.budget_parts import Runs, WaitingRun
from slicewise.slurm_plugin.rules.limits.changes import stages
from slicewise.slurm_plugin.rules.limits.desired import (
    Allowed,
    InUse,
    desired_limits,
    differences,
    found_of,
    in_use,
    limits_type,
)
from slicewise.slurm_plugin.rules.limits.warnings import (
    crowding_findings,
    limit_findings,
    unknown_qos,
)
from slicewise.slurm_plugin.rules.quota.jobs import jobs_by_holder
from slicewise.slurm_plugin.rules.quota.standings import standings
from slicewise.slurm_plugin.rules.quota.types import (
    KnownLimit,
    LimitKey,
    Loan,
    Policy,
    Quota,
    Tenant,
)

COSTS = {"1g.10gb": 1000, "3g.40gb": 3500}
CONFIG = {"AccountingStorageTRES": "cpu,billing,gres/gpu,gres/gpu:1g.10gb,gres/gpu:3g.40gb"}
NORMAL = frozenset({"normal"})
VISION = "modify account where name=vision cluster=c set"


def account(name: str, parent: str = "root", **changes: object) -> Association:
    values = {"qos": NORMAL, "default_qos": "", "grp_tres": {}} | changes
    return Association("c", name, "", parent, **values)  # type: ignore[arg-type]


def user(name: str, of: str, **changes: object) -> Association:
    values = {"qos": NORMAL, "default_qos": "", "grp_tres": {}} | changes
    return Association("c", of, name, "", **values)  # type: ignore[arg-type]


def done(name: str, parent: str = "root", **limits: int) -> Association:
    """An account as it is after the changes."""
    own = frozenset({qos_name(name), borrowed_qos(name)})
    return account(name, parent, qos=NORMAL | own, grp_tres=limits, own_qos=own)


GATE = Qos("slicewise_gate", {"billing": 0}, frozenset())
OVER = frozenset({"overpartqos"})


def ours(**own: int) -> list[Qos]:
    """The two QOS of each tenant, as they are after the changes, and the gate."""
    borrowed = frozenset(map(borrowed_qos, own))
    return [
        *(
            Qos(qos_name(name), {"billing": most}, borrowed, flags=OVER)
            for name, most in own.items()
        ),
        *(
            Qos(name, {"billing": 0}, frozenset(), preempt_mode="requeue", flags=OVER)
            for name in sorted(borrowed)
        ),
        GATE,
    ]


def tenants(**nominal: int) -> Policy:
    """They may borrow."""
    borrowing = Millislices(1000)
    return {
        name: tenant(name, amount, borrowing_limit_millislices=borrowing)
        for name, amount in nominal.items()
    }


def allowed(
    policy: Policy, loans: Iterable[Loan] = (), run_minutes: Mapping[str, int] | None = None
) -> Allowed:
    of = standings(policy, tuple(loans))
    models = dict.fromkeys(COSTS, "A100-80GB")
    return Allowed(policy, of, run_minutes or {}, COSTS, models)


def changes(
    policy: Policy | Allowed,
    rows: Iterable[Association],
    qos: Iterable[Qos] = (GATE,),
    known: Mapping[LimitKey, KnownLimit] | None = None,
) -> list[list[str]]:
    """Stage by stage, each command as one text."""
    has = found_of("c", rows, qos, CONFIG)
    rights = policy if isinstance(policy, Allowed) else allowed(policy)
    found = stages(differences(desired_limits(rights, has, known or {}), has), has)
    return [[" ".join(change) for change in stage] for stage in found]


ROOT = account("root", "")


def test_a_new_tenant():
    rows = [ROOT, account("vision"), user("alice", "vision")]
    assert changes(tenants(vision=6000), rows, qos=()) == [
        [
            (
                "add qos slicewise_vision_borrowed grptres=billing=0 flags=overpartqos"
                " preemptmode=requeue"
            )
        ],
        [
            "add qos slicewise_gate grptres=billing=0",
            (
                "add qos slicewise_vision grptres=billing=6000 preempt=slicewise_vision_borrowed"
                " flags=overpartqos"
            ),
        ],
        [f"{VISION} qos+=slicewise_vision,slicewise_vision_borrowed"],
    ]


def test_only_who_borrows_can_be_preempted():
    rows = [ROOT, account("vision"), account("nlp")]
    quota = Quota(Millislices(1000))
    policy = {name: Tenant(name, "", quota) for name in ("vision", "nlp")}
    preempted = LimitKey("qos", "slicewise_vision", "preempt")
    found = found_of("c", rows, (), CONFIG)
    assert desired_limits(allowed(policy), found, {}).settings[preempted].value == ""
    nlps = "slicewise_nlp_borrowed"
    borrows = {
        **policy,
        "nlp": Tenant("nlp", "", replace(quota, borrowing_limit_millislices=Millislices(1))),
    }
    assert desired_limits(allowed(borrows), found, {}).settings[preempted].value == nlps
    # Its jobs run there still, though it may borrow no more.
    busy = replace(found, in_use=InUse(held={("nlp", nlps): 1000}))
    assert desired_limits(allowed(policy), busy, {}).settings[preempted].value == nlps


def test_nothing_to_do_is_nothing():
    rows = [ROOT, done("vision")]
    assert changes(tenants(vision=6000), rows, ours(vision=6000)) == []


@pytest.mark.parametrize("nominal", [0, 5999, 6001])
def test_a_changed_quota_changes_the_limit_of_its_own_qos(nominal: int):
    rows = [ROOT, done("vision")]
    assert changes(tenants(vision=nominal), rows, ours(vision=6000)) == [
        [f"modify qos where name=slicewise_vision set grptres=billing={nominal}"]
    ]


def test_a_loan_is_taken_from_the_lender_before_the_borrower_has_it():
    rows = [ROOT, done("a"), done("b")]
    qos = ours(a=1000, b=5000)
    many = Millislices(9000)
    policy = {
        "a": tenant("a", 1000, borrowing_limit_millislices=many),
        "b": tenant("b", 5000, lending_limit_millislices=many),
    }
    lent = allowed(policy, [Loan("b", "a", Millislices(2000))])
    assert changes(lent, rows, qos) == [
        ["modify qos where name=slicewise_b set grptres=billing=3000"],
        ["modify qos where name=slicewise_a_borrowed set grptres=billing=2000"],
    ]


def test_accounts_without_a_quota_have_no_limit():
    assert changes({}, [ROOT, account("a"), account("b"), user("x", "a")]) == []
    rows = [ROOT, account("lab"), done("a", "lab"), done("b", "lab")]
    assert changes(tenants(a=1000, b=2000), rows, ours(a=1000, b=2000)) == []


def test_a_tenant_may_not_use_the_qos_of_the_one_above():
    policy = {
        "lab": tenant("lab", 3000),
        "a": tenant("a", 1000, "lab"),
    }
    inherits = done("a", "lab")
    inherits = replace(inherits, qos=inherits.qos | {qos_name("lab")})
    qos = ours(lab=2000, a=1000)
    assert changes(policy, [ROOT, done("lab"), inherits], qos) == [
        ["modify account where name=a cluster=c set qos-=slicewise_lab"]
    ]


def test_an_account_below_a_tenant_inherits_its_qos():
    lab = done("lab")
    below = account("a", "lab", qos=lab.qos)
    qos = ours(lab=3000)
    assert changes(tenants(lab=3000), [ROOT, lab, below], qos) == []


def test_the_root_account_is_never_limited():
    assert changes(tenants(root=1000), [ROOT]) == []


def test_a_quota_without_an_account_waits_and_is_reported():
    assert changes(tenants(ghost=1000), [ROOT]) == []
    (said,) = limit_findings(allowed(tenants(ghost=1000)), found_of("c", [ROOT], (), CONFIG))
    assert "ghost" in said.text
    assert [one.line for one in said.mends] == ["sacctmgr add account ghost cluster=c"]


def test_no_command_is_longer_than_linux_takes():
    """A coordinator may make accounts without end, and one command would be for all of them."""
    made = [account(f"{number:04}{'ü' * 120}", "vision") for number in range(700)]
    rows = [ROOT, done("vision"), *made, user("alice", made[0].account)]
    own = [
        user("alice", row.account, own_qos=NORMAL, own_default_qos="slicewise_gone") for row in made
    ]
    qos = ours(vision=6000)
    has = found_of("c", [*rows, *own], qos, CONFIG)
    rights = allowed(tenants(vision=6000))
    limits = desired_limits(rights, has, {})
    words = [
        word for stage in stages(differences(limits, has), has) for one in stage for word in one
    ]
    assert max(len(word.encode()) for word in words) < 20_000
    for kind in ("name", "account"):
        named = [word.partition("=")[2] for word in words if word.startswith(f"{kind}=0")]
        assert {name for text in named for name in text.split(",")} == {row.account for row in made}


def test_a_former_tenant_loses_its_qos_also_as_its_default():
    known = {LimitKey("qos", "slicewise_a", "grptres=billing"): KnownLimit("", "1000")}
    qos = ours(a=1000)
    row = replace(done("a"), own_default_qos="slicewise_a")
    assert changes({}, [ROOT, row], qos, known) == [
        ["modify qos where name=slicewise_a set grptres=billing=0"],
        ["modify account where name=a cluster=c set qos= defaultqos=-1"],
    ]


@pytest.mark.parametrize("name", ["gate", "vision_borrowed"])
def test_a_tenant_whose_qos_would_be_another_of_ours_gets_none(name: str):
    rows = [ROOT, account(name)]
    assert changes(tenants(**{name: 1000}), rows) == []
    (said,) = limit_findings(allowed(tenants(**{name: 1000})), found_of("c", rows, (), CONFIG))
    assert said.text.startswith(f"Tenant {name} can't have limits")


def test_another_preempted_qos_is_left_in_the_list():
    """Of another cluster's tenant, or a gone one, or a site's own."""
    own, *others = ours(vision=6000)
    rows = [ROOT, done("vision")]
    more = replace(own, preempt=own.preempt | {"slicewise_gone_borrowed", "site"})
    assert changes(tenants(vision=6000), rows, [more, *others]) == []
    fewer = replace(own, preempt=frozenset({"slicewise_gone_borrowed"}))
    assert changes(tenants(vision=6000), rows, [fewer, *others]) == [
        ["modify qos where name=slicewise_vision set preempt+=slicewise_vision_borrowed"]
    ]


def test_hundreds_of_preempted_qos_are_added_a_hundred_at_a_time():
    """slurmdbd could not add 200 by one ``+=``."""
    names = ["vision", *(f"t{number}" for number in range(250))]
    own, *others = ours(**dict.fromkeys(names, 1000))
    rows = [ROOT, *(done(name) for name in names)]
    none = replace(own, preempt=frozenset())
    (stage,) = changes(tenants(**dict.fromkeys(names, 1000)), rows, [none, *others])
    start = "modify qos where name=slicewise_vision set preempt+="
    added = [command.removeprefix(start).split(",") for command in stage]
    assert [len(some) for some in added] == [100, 100, 51]
    assert {name for some in added for name in some} == own.preempt


def test_borrowed_jobs_are_requeued_whatever_slurm_conf_says():
    own, borrowed, gate = ours(vision=6000)
    rows = [ROOT, done("vision")]
    cancelled = replace(borrowed, preempt_mode="cluster")
    assert changes(tenants(vision=6000), rows, [own, cancelled, gate]) == [
        ["modify qos where name=slicewise_vision_borrowed set preemptmode=requeue"]
    ]


def test_a_qos_of_another_cluster_is_left_alone():
    assert changes({}, [ROOT], ours(theirs=5000)) == []


@pytest.mark.parametrize(("term_s", "text"), [(7, "0:07"), (150, "2:30"), (86_400, "1440:00")])
def test_a_term_is_written_in_minutes_and_seconds(term_s: int, text: str):
    """A number alone would be minutes."""
    rights = replace(allowed(tenants(vision=6000)), term_s=term_s)
    rows = [ROOT, done("vision")]
    assert changes(rights, rows, ours(vision=6000)) == [
        [f"modify qos where name=slicewise_vision_borrowed set preemptexempttime={text}"]
    ]
    assert changes(rights, rows, [*ours(vision=6000)[:1], GATE])[0] == [
        (
            "add qos slicewise_vision_borrowed grptres=billing=0 flags=overpartqos"
            f" preemptmode=requeue preemptexempttime={text}"
        )
    ]

    @pytest.mark.parametrize(
        ("held", "limits"),
        [
            ({("sub", "normal"): 500}, (6000, 500)),
            ({("sub", "normal"): 1000}, (6000, 0)),
            ({("sub", "normal"): 3000, ("a", "normal"): 1000}, (3000, 0)),
            ({("sub", "normal"): 9999}, (0, 0)),
            # They are in its limits already, or in b's.
            ({("sub", "slicewise_a"): 4000, ("a", "slicewise_a_borrowed"): 500}, (6000, 1000)),
            ({("a", "slicewise_b"): 4000}, (6000, 1000)),
            # It was a tenant once.
            ({("sub", "slicewise_sub"): 3000, ("sub", "slicewise_sub_borrowed"): 500}, (3500, 0)),
        ],
    )
    def test_what_runs_in_other_qos_is_taken_off(
        held: Mapping[tuple[str, str], int], limits: tuple[int, int]
    ):
        policy = {
            "a": tenant("a", 6000, borrowing_limit_millislices=Millislices(9000)),
            "b": tenant("b", 5000, lending_limit_millislices=Millislices(9000)),
        }
        lent = allowed(policy, [Loan("b", "a", Millislices(1000))])
        rows = [ROOT, account("a"), account("sub", "a"), account("b")]
        has = found_of("c", rows, (), CONFIG, InUse(held=held))
        settings = desired_limits(lent, has, {}).settings
        keys = (
            LimitKey("qos", name, "grptres=billing")
            for name in ("slicewise_a", "slicewise_a_borrowed")
        )
        assert tuple(int(settings[key].value) for key in keys) == limits


NOBODY = jobs_by_holder((), frozenset(), {}, {})


def test_what_counts_as_in_use():
    costs = {name: Millislices(cost) for name, cost in COSTS.items()}

    def vision(qos: str, state: JobState = JobState.RUNNING, **changes: object) -> JobView:
        tres = {"gres/gpu:3g.40gb": "1"}
        one = replace(slot(0), account="vision", qos=qos, state=state, tres=tres, partition="gpu")
        return replace(one, **changes)  # type: ignore[arg-type]

    jobs = [
        vision("normal"),
        vision("slicewise_nlp_borrowed", account="nlp"),
        vision("slicewise_nlp_borrowed", JobState.ENDED, account="nlp"),
        vision("normal", JobState.PENDING),
        vision("normal", partition="cpu"),
        vision("slicewise_vision", end_s=600),
        vision("slicewise_vision_borrowed"),
        vision("slicewise_nlp"),
    ]
    there = jobs_by_holder(jobs, frozenset({"gpu"}), costs, {})
    found = in_use(there, now_s=0, has_budgets=True)
    held = {
        ("vision", "normal"): 3500,
        ("nlp", "slicewise_nlp_borrowed"): 3500,
        ("vision", "slicewise_vision"): 3500,
        ("vision", "slicewise_vision_borrowed"): 3500,
        ("vision", "slicewise_nlp"): 3500,
    }
    assert found == InUse(held, found.runs)
    assert found.runs == Runs({("vision", "slicewise_vision"): 35_000})
    without = in_use(there, now_s=0, has_budgets=False)
    assert without == replace(found, runs=Runs())


def test_a_sites_own_qos_that_goes_through_the_gate_is_reported():
    row = done("vision")
    rows = [ROOT, replace(row, qos=row.qos | {"long", "flag", "limit"})]
    qos = [
        Qos("long", {"billing": 1}, frozenset(), flags=OVER),
        Qos("flag", {"cpu": 1}, frozenset(), flags=OVER),
        Qos("limit", {"billing": 1}, frozenset()),
        Qos("far", {"billing": 1}, frozenset(), flags=OVER),
    ]
    said = limit_findings(allowed(tenants(vision=6000)), found_of("c", rows, qos, CONFIG))
    assert [one.text.split()[1] for one in said] == ["long"]


def test_an_account_that_was_moved_below_another_tenant_is_reported():
    """A coordinator may move accounts to where they use up another tenant's limit."""
    policy = {
        **tenants(nlp=4000, vision=4000),
        "sub": tenant("sub", 2, "vision"),
    }
    rows = [ROOT, account("nlp"), account("vision"), account("sub", "group")]
    for above, moved in (("vision", False), ("nlp", True), ("root", True)):
        has = found_of("c", [*rows, account("group", above)], (), CONFIG)
        texts = [one.text for one in limit_findings(allowed(policy), has)]
        said = [words for words in texts if "Account sub" in words]
        assert len(said) == moved
        assert not moved or "name=sub cluster=c set parent=vision;" in said[0]


def test_tenants_that_may_crowd_out_all_others_are_named():
    """10,000 held tasks of one user, and slurmctld took no other job: seen on 22.05."""
    rows = [
        ROOT,
        account("open"),
        account("bounded", bounds_submits=True),
        account("below", "bounded"),
        account("strange", bounds_submits=False),
    ]
    has = found_of("c", rows, (), CONFIG)
    policy = tenants(open=1000, bounded=1000, below=1000)
    (said,) = crowding_findings(allowed(policy), has, "10000")
    assert "the users of open may have waiting" in said.text
    assert "MaxJobCount=10000" in said.text
    bound = "sacctmgr modify account where name={} cluster=c set MaxSubmitJobs=1000"
    assert [one.line for one in said.mends] == [bound.format("open")]
    assert bound.format("ACCOUNT") in said.text
    many = [account(f"t{number}") for number in range(9)]
    policy = tenants(**{row.account: 1000 for row in many})
    (said,) = crowding_findings(allowed(policy), found_of("c", [ROOT, *many], (), CONFIG), "9")
    assert "of t0, t1, t2, t3, t4 and 4 more may" in said.text
    assert crowding_findings(allowed({}), has, "9") == ()


def test_accounts_nested_as_deep_as_a_coordinator_likes_end_no_look():
    deep = [account("d0"), *(account(f"d{n}", f"d{n - 1}") for n in range(1, 3000))]
    has = found_of("c", [ROOT, *deep], (), CONFIG)
    (said,) = crowding_findings(allowed(tenants(d2999=1000)), has, "9")
    assert "the users of d2999 may" in said.text


def test_another_clusters_accounts_are_left_alone():
    other = Association("d", "vision", "", "root", frozenset(), "", {})
    assert changes(tenants(vision=6000), [ROOT, other]) == []


def test_other_limits_are_left_alone():
    rows = [ROOT, done("vision", cpu=3, **{"gres/gpu:1g.10gb": 2})]
    assert changes(tenants(vision=6000), rows, ours(vision=6000)) == []


def limited(**of: Mapping[str, int]) -> Policy:
    return {"vision": tenant("vision", 6000, **of)}  # type: ignore[arg-type]


def test_limits_on_types_and_models():
    rows, qos = [ROOT, done("vision")], ours(vision=6000)
    change = f"{VISION} grptres="
    by_type = limited(type_limits={"3g.40gb": 1})
    assert changes(by_type, rows, qos) == [[f"{change}gres/gpu:3g.40gb=1"]]
    by_model = limited(model_limits={"A100-80GB": 4500}, type_limits={"1g.10gb": 2})
    assert changes(by_model, rows, qos) == [[f"{change}gres/gpu:1g.10gb=2,gres/gpu:3g.40gb=1"]]


def test_a_limit_on_a_type_that_slurm_does_not_count_is_reported():
    rows, qos = [ROOT, done("vision")], ours(vision=6000)
    policy = limited(type_limits={"9g.99gb": 1})
    assert changes(policy, rows, qos) == []
    (said,) = limit_findings(allowed(policy), found_of("c", rows, qos, CONFIG))
    assert "9g.99gb" in said.text


def test_a_grace_time_of_borrowed_qos_is_warned_of_once_and_left_alone():
    policy, rows = tenants(vision=6000), [ROOT, done("vision")]
    own, borrowed, *gate = ours(vision=6000)
    qos = [replace(own, grace_s=30), borrowed, *gate]
    assert limit_findings(allowed(policy), found_of("c", rows, qos, CONFIG)) == ()
    of_another_cluster = replace(borrowed, name="slicewise_nlp_borrowed", grace_s=30)
    qos = [own, borrowed, of_another_cluster, *gate]
    assert limit_findings(allowed(policy), found_of("c", rows, qos, CONFIG)) == ()
    qos = [own, replace(borrowed, grace_s=30), of_another_cluster, *gate]
    (said,) = limit_findings(allowed(policy), found_of("c", rows, qos, CONFIG))
    (mend,) = said.mends
    assert said.code == "SW-LIMITS-GRACE"
    assert mend.line == "sacctmgr modify qos slicewise_vision_borrowed set GraceTime=0"
    assert changes(policy, rows, qos) == []


def test_parts_of_shared_gpus_are_limited_by_their_own_tres():
    rows, qos = [ROOT, done("vision")], ours(vision=6000)
    policy = limited(type_limits={"shard": 4})
    config = {**CONFIG, "AccountingStorageTRES": "gres/gpu,gres/shard"}
    found = found_of("c", rows, qos, config)
    settings = desired_limits(allowed(policy), found, {}).settings
    assert settings[LimitKey("account", "vision", "grptres=gres/shard")].value == "4"
    assert limits_type("grptres=gres/shard")
    assert not limits_type("grptres=gres/shardx")


@pytest.mark.parametrize(("before", "word"), [("", "-1"), ("5", "5")])
def test_a_limit_on_a_type_that_was_taken_away_is_what_it_was_before(before: str, word: str):
    rows = [ROOT, done("vision", **{"gres/gpu:3g.40gb": 1})]
    key = LimitKey("account", "vision", "grptres=gres/gpu:3g.40gb")
    known = {key: KnownLimit(before, "1")}
    qos = ours(vision=6000)
    assert changes(tenants(vision=6000), rows, qos, known) == [
        [f"{VISION} grptres=gres/gpu:3g.40gb={word}"]
    ]
    handed_back = {key: KnownLimit(before, before)}
    assert changes(tenants(vision=6000), rows, qos, handed_back) == []


@pytest.mark.parametrize(
    ("now", "minutes", "is_set"),
    [
        (None, 600_000, True),
        (600_000, 594_060, False),
        (600_000, 594_059, True),
        (600_000, 606_060, False),
        (600_000, 606_100, True),
        (1_500, 2_500, False),
        (1_500, 2_501, True),
        (900, 0, True),
        # Or what hovers about nothing would be set at each look.
        (0, 1000, False),
        (0, 1001, True),
        (0, 0, False),
    ],
)
def test_what_is_left_of_a_budget_is_set_when_it_matters(
    now: int | None, minutes: int, is_set: bool
):
    own, borrowed, gate = ours(vision=6000)
    own = replace(own, grp_tres_run_mins={} if now is None else {"billing": now})
    borrowed = replace(borrowed, grp_tres_run_mins={"billing": 0})
    change = f"modify qos where name=slicewise_vision set grptresrunmins=billing={minutes}"
    rights = allowed(tenants(vision=6000), run_minutes={"vision": minutes})
    found = changes(rights, [ROOT, done("vision")], [own, borrowed, gate])
    assert found == ([[change]] if is_set else [])


BUDGETS = {
    name: LimitKey("qos", name, "grptresrunmins=billing")
    for name in ("slicewise_vision", "slicewise_vision_borrowed")
}


def with_part(one: Qos, minutes: int) -> Qos:
    return replace(one, grp_tres_run_mins={"billing": minutes})


def test_what_slurm_does_not_count_of_a_run_is_taken_off_its_limits():
    """They began before accounting knew their type, or before the partition billed it."""
    costs = {name: Millislices(cost) for name, cost in COSTS.items()}

    def run(qos: str, billing: str, **changes: object) -> JobView:
        fields = {"tres": {"billing": billing, "gres/gpu": "1"}, "unnamed": {"3g.40gb": 1}}
        one = replace(slot(0), account="vision", qos=qos, state=JobState.RUNNING, partition="gpu")
        return replace(one, end_s=600, **{**fields, **changes})  # type: ignore[arg-type]

    own, borrowed = qos_name("vision"), borrowed_qos("vision")
    jobs = [
        run(own, "0"),
        run(own, "500"),
        run(own, "0", state=JobState.COMPLETING),
        run(own, "3500", unnamed={}, tres={"billing": "3500", "gres/gpu:3g.40gb": "1"}),
        run("normal", "3"),
    ]
    there = jobs_by_holder(jobs, frozenset({"gpu"}), costs, {})
    use = in_use(there, now_s=0, has_budgets=True)
    assert use.uncounted.millislices == {("vision", own): 6500, ("vision", "normal"): 3497}
    limits = {"type_limits": {"3g.40gb": 9}, "type_nominals": {"3g.40gb": 5}}
    policy = {"vision": tenant("vision", 30_000, **limits)}
    rights = allowed(policy, run_minutes={"vision": 300_000})
    has = found_of("c", (ROOT, account("vision")), (), CONFIG, use)
    settings = desired_limits(rights, has, {}).settings
    # 30,000 less the 3,500 that run in another QOS, less the 6,500 that count nowhere.
    assert settings[LimitKey("qos", own, "grptres=billing")].value == "20000"
    assert settings[LimitKey("qos", borrowed, "grptres=billing")].value == "0"
    assert settings[LimitKey("account", "vision", "grptres=gres/gpu:3g.40gb")].value == "6"
    assert settings[LimitKey("qos", own, "grptres=gres/gpu:3g.40gb")].value == "3"
    # Of five runs of 35,000 millislice-minutes Slurm counts one and a seventh.
    assert settings[BUDGETS[own]].value == str(300_000 - 35_000 - 65_000)


class TestBudgets:
    RIGHTS = allowed(tenants(vision=6000), run_minutes={"vision": 600_000})
    ROWS = (ROOT, replace(done("vision"), grp_tres_run_mins={"billing": 500_000}))

    def test_near_is_not_near_enough_for_a_job_that_is_to_start(self):
        """It needs all that there is, and the limit is one percent short."""
        own, borrowed, gate = ours(vision=6000)
        own, borrowed = with_part(own, 595_000), with_part(borrowed, 0)
        waiting = WaitingRun("slicewise_vision", 1000, 600_000)
        for jobs, changed in (((), 0), ((waiting,), 1)):
            use = InUse(runs=Runs(waiting=jobs))
            has = found_of("c", self.ROWS, [own, borrowed, gate], CONFIG, use)
            assert len(differences(desired_limits(self.RIGHTS, has, {}), has)) == changed

    @pytest.mark.parametrize(("now", "is_set"), [(4800, False), (4792, False), (4751, True)])
    def test_it_is_in_the_sites_own_unit_and_so_is_how_near_it_is(self, now: int, is_set: bool):
        """600,000 millislice-minutes are 4,800 at 8 a slice."""
        own, borrowed, gate = ours(vision=6000)
        own = replace(with_part(own, now), grp_tres={"billing": 48})
        qos = [own, with_part(borrowed, 0), gate]
        has = found_of("c", self.ROWS, qos, CONFIG, billing=BillingUnit(Fraction(8)))
        found = differences(desired_limits(self.RIGHTS, has, {}), has)
        assert [(one.now, one.wanted) for one in found] == [(str(now), "4800")] * is_set

    @pytest.mark.parametrize(("now", "is_set"), [(4799, True), (4800, False)])
    def test_a_job_that_is_to_start_needs_so_much_as_it_is_billed(self, now: int, is_set: bool):
        """That is 4,800 of what is left, 4,808."""
        own, borrowed, gate = ours(vision=6000)
        own = replace(with_part(own, now), grp_tres={"billing": 48})
        use = InUse(runs=Runs(waiting=(WaitingRun("slicewise_vision", 1000, 600_000),)))
        qos, unit = [own, with_part(borrowed, 0), gate], BillingUnit(Fraction(8))
        has = found_of("c", self.ROWS, qos, CONFIG, use, billing=unit)
        rights = allowed(tenants(vision=6000), run_minutes={"vision": 601_000})
        found = differences(desired_limits(rights, has, {}), has)
        assert [one.wanted for one in found] == ["4808"] * is_set

    def test_what_jobs_may_take_in_other_qos_is_taken_off(self):
        taken = {("vision", "normal"): 100_000, ("vision", "slicewise_vision_borrowed"): 50_000}
        has = found_of("c", self.ROWS, [], CONFIG, InUse(runs=Runs(taken)))
        settings = desired_limits(self.RIGHTS, has, {}).settings
        assert [int(settings[key].value) for key in BUDGETS.values()] == [450_000, 50_000]
        assert settings[BUDGETS["slicewise_vision"]].why == (
            "budget of vision: 7.50 slice-hours of it"
        )

    def test_a_sites_own_limit_of_an_account_is_left_alone(self):
        own, borrowed, gate = ours(vision=6000)
        qos = [with_part(own, 600_000), with_part(borrowed, 0), gate]
        has = found_of("c", self.ROWS, qos, CONFIG)
        assert differences(desired_limits(self.RIGHTS, has, {}), has) == ()

    def test_without_the_budget_nothing_is_limited(self):
        own, borrowed, gate = ours(vision=6000)
        qos = [with_part(own, 5), with_part(borrowed, 5), gate]
        known = dict.fromkeys(BUDGETS.values(), KnownLimit("", "5"))
        has = found_of("c", self.ROWS, qos, CONFIG)
        found = stages(
            differences(desired_limits(allowed(tenants(vision=6000)), has, known), has), has
        )
        assert [" ".join(change) for stage in found for change in stage] == [
            (
                "modify qos where name=slicewise_vision,slicewise_vision_borrowed"
                " set grptresrunmins=billing=-1"
            )
        ]

    def test_parts_shrink_before_others_grow(self):
        own, borrowed, gate = ours(vision=6000)
        qos = [with_part(own, 1), with_part(borrowed, 600_000), gate]
        assert changes(self.RIGHTS, self.ROWS, qos) == [
            ["modify qos where name=slicewise_vision_borrowed set grptresrunmins=billing=0"],
            ["modify qos where name=slicewise_vision set grptresrunmins=billing=600000"],
        ]


def test_a_user_with_a_qos_list_of_his_own_gets_it_too():
    own = {"qos": frozenset({"long"}), "own_qos": frozenset({"long"})}
    rows = [ROOT, account("vision"), user("alice", "vision", **own), user("bob", "vision")]
    found = changes(tenants(vision=6000), rows, ours(vision=6000))
    assert found[0] == [
        (
            "modify user where name=alice account=vision cluster=c"
            " set qos+=slicewise_vision,slicewise_vision_borrowed"
        )
    ]


def test_so_does_one_with_a_list_for_one_partition_alone():
    own = {"qos": NORMAL, "own_qos": NORMAL, "partition": "gpu"}
    rows = [ROOT, account("vision"), user("alice", "vision"), user("alice", "vision", **own)]
    found = changes(tenants(vision=6000), rows, ours(vision=6000))
    assert found[0] == [
        (
            "modify user where name=alice account=vision cluster=c partition=gpu"
            " set qos+=slicewise_vision,slicewise_vision_borrowed"
        )
    ]


def test_a_user_loses_the_qos_of_a_former_tenant_that_was_his_own_default():
    theirs = {"qos": NORMAL | {"slicewise_a"}, "own_qos": NORMAL | {"slicewise_a"}}
    rows = [
        ROOT,
        account("a"),
        user("alice", "a", own_default_qos="slicewise_a", **theirs),
    ]
    assert changes({}, rows, ours(a=0)) == [
        ["modify user where name=alice account=a cluster=c set qos-=slicewise_a defaultqos=-1"]
    ]


def test_every_word_of_a_change_is_one_argument():
    has = found_of("c", [ROOT, account("vision")], [], CONFIG)
    found = differences(desired_limits(allowed(tenants(vision=1)), has, {}), has)
    every = [word for stage in stages(found, has) for change in stage for word in change]
    assert all(" " not in word for word in every)


@pytest.mark.parametrize(
    ("written", "is_right"),
    [("c", True), ("Site", False), ("site", True), ("SITE", True), ("d", False), ("", False)],
)
def test_another_clusters_name_is_an_error_and_not_a_cluster_without_tenants(
    written: str, is_right: bool
):
    config = CONFIG | {"ClusterName": "SITE" if written.lower() == "site" else "c"}
    if is_right:
        assert found_of(written, [ROOT], (), config).cluster == written
        return
    with pytest.raises(InvalidInputError) as raised:
        found_of(written, [ROOT], (), config)
    assert raised.value.refusal.code == "SW-CLUSTER-NAME"


def test_a_qos_that_stands_for_a_class_and_is_not_there_is_told_of():
    qos = (Qos("urgent", {}, frozenset()),)
    (said,) = unknown_qos(["urgent", "lost"], found_of("c", [ROOT], qos, CONFIG))
    assert "names lost, but slurmdbd has no such QOS" in said.text


def test_guarantees_by_type_limit_the_own_qos_alone():
    rows, qos = [ROOT, done("vision")], ours(vision=6000)
    by_type = limited(type_nominals={"3g.40gb": 1, "9g.99gb": 1})
    assert changes(by_type, rows, qos) == [
        ["modify qos where name=slicewise_vision set grptres=gres/gpu:3g.40gb=1"]
    ]
    (said,) = limit_findings(allowed(by_type), found_of("c", rows, qos, CONFIG))
    assert "9g.99gb" in said.text
    set_ = [replace(one, grp_tres={**one.grp_tres, "gres/gpu:3g.40gb": 1}) for one in qos[:1]]
    key = LimitKey("qos", "slicewise_vision", "grptres=gres/gpu:3g.40gb")
    assert changes(by_type, rows, [*set_, *qos[1:]]) == []
    assert changes(tenants(vision=6000), rows, [*set_, *qos[1:]], {key: KnownLimit("", "1")}) == [
        ["modify qos where name=slicewise_vision set grptres=gres/gpu:3g.40gb=-1"]
    ]


def test_an_own_qos_allows_no_more_of_a_type_than_the_limit_that_it_hides():
    by_type = limited(type_nominals={"3g.40gb": 4}, model_limits={"A100-80GB": 7000})
    found = changes(by_type, [ROOT, done("vision")], ours(vision=6000))
    change = "modify qos where name=slicewise_vision set grptres=gres/gpu:3g.40gb=2"
    assert change in [one for together in found for one in together]
