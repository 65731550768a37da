"""A small site as ``slicewise snapshot`` sees it, with words in it that nobody else may read."""

from stand_ins.scripted import job

from builders.tenants import tenant
from slicewise.cluster.language.jobs import JobState, JobTag, NodeView, PartitionView
from slicewise.cluster.language.periods import Period
from slicewise.cluster.language.slurm.interface import Association, Qos
from slicewise.cluster.language.units import Millislices, MillisliceSeconds
from slicewise.cluster.settings.file import Settings
from slicewise.slurm_plugin.rules.accounting.ledger_view import LedgerView
from slicewise.slurm_plugin.rules.accounting.types import Balance, Reservation, RunKey
from slicewise.slurm_plugin.rules.quota.calendar import Window, WindowKind
from slicewise.slurm_plugin.rules.quota.calendar_times import moment
from slicewise.slurm_plugin.rules.quota.types import (
    Budget,
    KnownLimit,
    LimitKey,
    Loan,
    Quota,
    Recall,
    Tenant,
)
from slicewise.slurm_plugin.rules.snapshot.contents import (
    FORMAT,
    SiteSnapshot,
    SnapshotService,
    association_values,
    ledger_values,
    partition_values,
    qos_values,
    scheduling_values,
    service_values,
    settings_values,
    without_addresses,
    without_words,
)

NOW_S = 1_700_000_000
PRIVATE = "5ec4e7"
"""Stands wherever a secret, an address, a path or a user's own words might."""
SETTINGS = Settings.model_validate(
    {
        "cluster": {"name": "c", "partitions": ["gpu"], "billing_per_slice": "1000"},
        "gpus": {"A100-80GB": {"weight": "3/2", "types": ["1g.10gb"], "whole": ["a100"]}},
        "priority": {"high_class_for": ["vision"]},
        "daemon": {
            "run_dir": f"/run/{PRIVATE}",
            "listen": f"{PRIVATE}:1",
            "slurm": "slurmrestd",
            "slurmrestd": f"https://{PRIVATE}",
            "slurmrestd_token": f"/{PRIVATE}",
        },
        "database": {"url_file": f"/{PRIVATE}"},
        "repartition": {"slurm_conf": f"/{PRIVATE}"},
    }
)


def tag(service: str | None = None) -> str:
    return JobTag(PRIVATE.replace("e", "0"), "vision", service).text() + f" {PRIVATE}"


def _budget() -> Budget:
    return Budget(Period.MONTH, MillisliceSeconds(3_600_000))


def _ledger() -> LedgerView:
    nlp = Quota(Millislices(7000), Millislices(2000), Millislices(3000), 2, {"1g.10gb": 2})
    return LedgerView(
        when=moment(NOW_S, "UTC"),
        change_id=7,
        compiled_id=6,
        tenants={
            "vision": tenant("vision", 14_000, budget=_budget()),
            "nlp": Tenant("nlp", "vision", nlp),
        },
        windows=(
            Window(
                3,
                "nlp",
                WindowKind.BORROWING,
                Millislices(1),
                frozenset({4, 0}),
                reason=f"for {PRIVATE}",
            ),
            Window(4, "", WindowKind.CAP, Millislices(1), first_s=5, last_s=9),
        ),
        loans=(Loan("nlp", "vision", Millislices(500)),),
        recalls=(Recall("nlp", "vision", Millislices(250), NOW_S - 9),),
        balances={
            "vision": Balance("vision", *(MillisliceSeconds(n) for n in (5, 4, 3, 2, 1))),
        },
        rollovers={"vision": NOW_S - 100},
        reservations=(
            Reservation(
                RunKey("c", 11, NOW_S - 50),
                "vision",
                "alice",
                "11",
                {"1g.10gb": 1},
                Millislices(1500),
                "vision",
                MillisliceSeconds(9),
                MillisliceSeconds(8),
                2,
            ),
        ),
        known={LimitKey("qos", "slicewise_nlp", "grptres=billing"): KnownLimit("", PRIVATE)},
    )


def snapshot() -> SiteSnapshot:
    """What the command makes of the site."""
    nodes = (
        NodeView(
            "gpu01",
            PRIVATE,
            frozenset({"MIXED", "DRAIN"}),
            {"1g.10gb": 7, "a100": 1},
            {"1g.10gb": 1},
            frozenset({"gpu", "all"}),
            5,
            frozenset({2, 1}),
            cpus=64,
            memory_mib=512_000,
            untyped_gpus=2,
        ),
        NodeView("slicewise-shapes", PRIVATE, frozenset({"FUTURE"}), {"1g.10gb": 7}, {}),
    )
    licence = f"license/matlab@{PRIVATE}"
    words = {"comment": PRIVATE, "admin_comment": tag()}
    asked = {"gres/gpu:1g.10gb": "1", licence: "1"}
    jobs = (
        job(0, array_job_id=None, task_index=None, name="train", tres=asked, **words),
        job(1, name="bert", comment=PRIVATE, admin_comment=tag("bert")),
        job(2, JobState.ENDED, name=PRIVATE),
        job(3, account="nlp", user="bob", admin_comment=PRIVATE, name="other", qos="long"),
    )
    config = {
        "PriorityType": "priority/multifactor",
        "PriorityWeightAge": "1000",
        "SchedulerParameters": "bf_interval=5",
        "SlurmctldHost[0]": PRIVATE,
        "StateSaveLocation": f"/{PRIVATE}",
    }
    directives = {"max_replicas": "4", "model_repository": f"/{PRIVATE}", "environment": PRIVATE}
    weights = {"gres/gpu:1g.10gb": 1500.0, licence: 1.0}
    limits = {licence: 2}
    allowed = frozenset({"slicewise_nlp", "long"})
    own = frozenset({"slicewise_vision", "slicewise_vision_borrowed", "normal"})
    return SiteSnapshot(
        format=FORMAT,
        taken_s=NOW_S,
        slicewise_version="0.1.0",
        slurm_version=(24, 11, 5),
        config=scheduling_values(config),
        nodes=without_addresses(nodes),
        partitions=partition_values(
            (
                PartitionView("gpu", weights, "slicewise_gate", max_time_s=86_400),
                PartitionView("all", weights, "", allow_qos=allowed),
            )
        ),
        associations=association_values(
            (
                Association("c", "root", "", "", frozenset(), "", {}),
                Association("c", "vision", "", "root", own, "slicewise_vision", {}, share=3),
                Association(
                    *("c", "nlp", "", "vision", frozenset(), "", {"billing": 9, **limits}),
                    grp_tres_run_mins=limits,
                    grp_tres_mins=limits,
                    own_qos=own,
                ),
                Association("c", "nlp", "bob", "", frozenset(), "", {}, share=None),
            )
        ),
        qos=qos_values(
            (
                Qos("slicewise_vision", {}, frozenset({"slicewise_nlp_borrowed"})),
                Qos(
                    *("slicewise_nlp_borrowed", {"billing": 0, **limits}, frozenset(), limits),
                    grp_tres_run_mins=limits,
                    priority=3,
                ),
            )
        ),
        jobs=without_words(jobs),
        settings=settings_values(SETTINGS),
        ledger=ledger_values(_ledger()),
        services=(SnapshotService(814, "vision", "bert", service_values(directives)),),
        history_since_s=NOW_S - 86_400,
    )
