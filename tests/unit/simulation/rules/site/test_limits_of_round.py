"""What Slicewise wants of slurmdbd, put into the model."""

from builders.site_world import COSTS, GPU, SETTINGS, cluster, tenants
from builders.tenants import tenant

from slicewise.cluster.language.billing import MILLISLICES
from slicewise.cluster.language.units import Millislices
from slicewise.simulation.rules.site.limits_of_round import (
    account_limits,
    associations,
    conf_of,
    own_accounts,
    own_qos,
    qos_limits,
)
from slicewise.simulation.rules.slurm_model.job_requests import AccountLimits, QosLimits
from slicewise.slurm_plugin.rules.limits.desired import Setting
from slicewise.slurm_plugin.rules.quota.types import LimitKey, Quota, Tenant


def test_limits_preemption_terms_and_modes_are_taken() -> None:
    def key(name: str, field: str) -> LimitKey:
        return LimitKey("qos", name, field)

    found = qos_limits(
        {
            key("slicewise_gate", "grptres=billing"): Setting("0", ""),
            key("slicewise_a", "grptres=billing"): Setting("7000", ""),
            key("slicewise_a", "preempt"): Setting("slicewise_b_borrowed,slicewise_c", ""),
            key("slicewise_b_borrowed", "grptres=billing"): Setting("0", ""),
            key("slicewise_b_borrowed", "preemptexempttime"): Setting("60", ""),
            key("slicewise_b_borrowed", "preemptmode"): Setting("requeue", ""),
        },
        {},
    )
    assert found.keys() == {"slicewise_a", "slicewise_b_borrowed"}
    assert found["slicewise_a"].grp_tres == {"billing": 7000}
    assert found["slicewise_a"].preempts == {"slicewise_b_borrowed", "slicewise_c"}
    borrowed = found["slicewise_b_borrowed"]
    # A limit of 0 lets nothing start; no limit would let everything.
    assert borrowed.grp_tres == {"billing": 0}
    assert (borrowed.preempt_exempt_s, borrowed.preempt_requeues) == (60, True)


def test_what_a_site_has_set_of_slicewise_s_qos_stays() -> None:
    settings = {
        LimitKey("qos", "slicewise_a", "grptres=billing"): Setting("7000", ""),
        LimitKey("qos", "slicewise_a", "grptres=gres/gpu:a100"): Setting("1", ""),
        LimitKey("qos", "slicewise_a", "preempt"): Setting("slicewise_b_borrowed", ""),
    }
    was = QosLimits(
        grp_tres={"billing": 3, "cpu": 9, "gres/gpu:a100": 2},
        grp_run_mins={"billing": 5, "cpu": 6},
        preempts=frozenset({"gone"}),
        preempt_exempt_s=60,
        priority=8,
    )
    site = {"slicewise_a": was, "slicewise_gate": QosLimits({"billing": 0}), "long": was}
    types = {"a": tenant("a", GPU, type_nominals={"a100": 2})}
    own = own_qos(site, types)
    assert own == {
        "slicewise_a": QosLimits({"cpu": 9}, {"cpu": 6}, priority=8),
        "long": was,
    }
    preempts = frozenset({"slicewise_b_borrowed"})
    assert qos_limits(settings, own) == {
        "slicewise_a": QosLimits(
            {"cpu": 9, "billing": 7000, "gres/gpu:a100": 1},
            {"cpu": 6},
            preempts=preempts,
            priority=8,
        )
    }


def test_limits_on_types_that_slicewise_set_are_not_the_site_s() -> None:
    quota = Quota(Millislices(GPU), type_limits={"a100": 2})
    accounts = {
        "a": AccountLimits("top", {"gres/gpu:a100": 2, "gres/gpu:v100": 1}, share=3),
        "b": AccountLimits("top", {"gres/gpu:a100": 2}),
    }
    assert own_accounts(accounts, {"a": Tenant("a", "", quota)}, COSTS, SETTINGS.models) == {
        "a": AccountLimits("top", {"gres/gpu:v100": 1}, share=3),
        "b": accounts["b"],
    }


def test_limits_on_types_stand_beside_what_an_account_has() -> None:
    settings = {
        LimitKey("account", "a", "grptres=gres/gpu:a100"): Setting("2", ""),
        LimitKey("account", "a", "qos"): Setting("slicewise_a", ""),
        LimitKey("account", "b", "grptres=gres/gpu:a100"): Setting("", ""),
    }
    before = {"a": AccountLimits("top", {"cpu": 9}, share=3)}
    assert account_limits(settings, before) == {
        "a": AccountLimits("top", {"cpu": 9, "gres/gpu:a100": 2}, share=3)
    }


def test_tenants_without_an_account_get_one_in_the_tree() -> None:
    policy = tenants(a=1, b=1)
    rows = associations(cluster(accounts={"a": "top", "top": "root"}), policy)
    assert {row.account: row.parent for row in rows} == {
        "root": "",
        "a": "top",
        "b": "root",
        "top": "root",
    }


def test_all_types_of_the_cluster_can_be_limited() -> None:
    conf = conf_of(cluster(), {"gpu"})
    assert "gres/gpu:a100" in conf.config["AccountingStorageTRES"].split(",")
    assert [one.name for one in conf.partitions] == ["gpu"]
    assert MILLISLICES.limit(GPU) == GPU
