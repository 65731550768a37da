"""Tests the planner's inputs: how GPUs are cut, which jobs hold them, which jobs wait."""

import json
import time
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest
from builders.ledger_parts import LedgerParts
from builders.nodes import a_node
from builders.runs import a_run_record
from builders.tenants import policy_of, tenant
from stand_ins.emulated_gpus import amd_node, two_boards
from stand_ins.scripted import ScriptedSlurm, job, settings

from slicewise.cluster.gpu.driver import read_inventory as read_any
from slicewise.cluster.gpu.nvml import read_inventory
from slicewise.cluster.language.errors import InvalidInputError, OutsideError
from slicewise.cluster.language.gpus.inventory import Inventory
from slicewise.cluster.language.gpus.layouts import Placement
from slicewise.cluster.language.gpus.repartitions import (
    PlannedRepartition,
    Repartition,
    RepartitionState,
    RepartitionStep,
)
from slicewise.cluster.language.jobs import SHAPES_NODE, JobState, JobView, NodeView, RunRecord
from slicewise.cluster.settings.file import Settings
from slicewise.cluster.slurm import node_command
from slicewise.sandbox.amd_smi.driver import EmulatedAmdGpu
from slicewise.slurm_plugin.ledger.repartitions import NodeSurvey
from slicewise.slurm_plugin.repartition.planner_inputs import gathered
from slicewise.slurm_plugin.repartition.survey import survey
from slicewise.slurm_plugin.rules.mig.candidates import GpuState, JobHolder, ReplicaHolder
from slicewise.slurm_plugin.rules.mig.cuts_due import (
    GpuRepartition,
    barred_lines,
    cuts_due,
    has_order,
)
from slicewise.slurm_plugin.rules.mig.gpu_state import lines_by_node
from slicewise.slurm_plugin.rules.mig.planner import GpuPlan, plan
from slicewise.slurm_plugin.rules.mig.problem import PlanInput, SitePlanInput
from slicewise.slurm_plugin.rules.overview.surveys import surveyed_gpus
from slicewise.slurm_plugin.rules.quota.types import Policy
from slicewise.slurm_plugin.rules.slurm_config.gres import (
    devices,
    gres_conf,
    node_gres,
    types_by_kind,
)
from slicewise.slurm_plugin.rules.slurm_config.node_lines import node_positions, padded
from slicewise.slurm_plugin.state.node_looks import node_looks, node_records

NOW_S = 1_000_000.0
A100, H200 = "A100-80GB", "H200-141GB"
ONES = tuple(Placement("1g.10gb", start, 1) for start in range(3))
THREE = Placement("3g.40gb", 4, 4)
TYPES = types_by_kind(settings().boards_by_type)
DEVICES = 8


@pytest.fixture(scope="module")
def inventory() -> Iterator[Inventory]:
    """An A100 with 1g on slices 0, 1 and 2 and 3g on the upper half; an H200 that is whole."""
    with two_boards() as node:
        for one in (*ONES, THREE):
            node.create(one)
        yield read_inventory(node.host_root)


@dataclass
class Journal(LedgerParts):
    """As the ledger has it."""

    surveyed: Mapping[str, Inventory] = field(default_factory=dict)
    age_s: float = 60.0
    running: tuple[Repartition, ...] = ()
    ended: tuple[Repartition, ...] = ()
    seconds: Mapping[RepartitionStep, list[float]] = field(default_factory=dict)
    saved: dict[str, Mapping[str, Any]] = field(default_factory=dict)
    nominal: int = 20_000
    types: Mapping[str, int] = field(default_factory=dict)

    def policy_in_force(self, _at_s: float, _zone: str) -> Policy:
        lender = tenant("lab", 7000, lending_limit_millislices=7000)
        limits = {"borrowing_limit_millislices": 7000, "type_nominals": self.types}
        return policy_of(tenant("vision", self.nominal, **limits), lender)

    def inventories(self) -> Mapping[str, NodeSurvey]:
        texts = {name: json.dumps(asdict(one)) for name, one in self.surveyed.items()}
        return {name: NodeSurvey(NOW_S - self.age_s, text) for name, text in texts.items()}

    def unfinished(self) -> tuple[Repartition, ...]:
        return self.running

    def history(self, limit: int) -> tuple[Repartition, ...]:
        return self.ended

    def step_seconds(self) -> Mapping[RepartitionStep, list[float]]:
        return self.seconds

    def save_inventory(self, node: str, inventory: Mapping[str, Any]) -> None:
        self.saved[node] = inventory


def node(name: str = "gpu01", **changes: Any) -> NodeView:
    gpus = {"1g.10gb": 3, "3g.40gb": 1, "nvidia_h200": 1, "pad5": 3}
    one = a_node(name, "MIXED", gpus=gpus)
    return replace(one, **changes)


class Site:
    """A cluster of nodes that are all cut alike, and its files."""

    def __init__(self, place: Path, inventory: Inventory, *nodes: NodeView) -> None:
        self.inventory, self.term_s = inventory, 0
        self.slurm = ScriptedSlurm()
        self.slurm.known_nodes = nodes or (node(),)
        self.journal = Journal({one.name: inventory for one in self.slurm.known_nodes})
        self.slurm_conf, self.gres_conf = place / "slurm.conf", place / "gres.conf"
        self.write([one.name for one in self.slurm.known_nodes])

    def write(self, names: list[str]) -> None:
        found = devices(self.inventory, TYPES)
        arranged = padded((*found, *([None] * (DEVICES - len(found)))), "NVIDIA", "/dev")
        gres = node_gres(arranged)
        lines = [f"NodeName={name} CPUs=8 Gres={gres}" for name in names]
        self.slurm_conf.write_text("\n".join(("ClusterName=here", *lines, "")))
        self.gres_conf.write_text(
            "\n".join(line for name in names for line in gres_conf(name, arranged))
        )

    @property
    def settings(self) -> Settings:
        files = {"slurm_conf": self.slurm_conf}
        known = settings()
        parts = {
            "repartition": known.repartition.model_copy(update=files),
            "lending": known.lending.model_copy(update={"term_s": self.term_s}),
        }
        return known.model_copy(update=parts)

    async def gathered(self) -> SitePlanInput:
        return await gathered(self.settings, self.slurm, self.journal)

    async def a100(self) -> PlanInput:
        return (await self.gathered()).boards[A100]

    async def gpu(self) -> GpuState:
        (gpu,) = (await self.a100()).gpus
        return gpu


@pytest.fixture
def site(tmp_path: Path, inventory: Inventory, monkeypatch: pytest.MonkeyPatch) -> Site:
    monkeypatch.setattr("slicewise.cluster.runtime.wall_clock.time.time", lambda: NOW_S)
    return Site(tmp_path, inventory)


def runs(index: int, **changes: Any) -> JobView:
    """A replica on gpu01."""
    return replace(job(index, JobState.RUNNING), **({"nodes": ("gpu01",)} | changes))


PLAIN: dict[str, Any] = {"array_job_id": None, "task_index": None, "admin_comment": ""}


def holds(site: Site, *pairs: tuple[JobView, set[int]], held: set[int] | None = None) -> None:
    site.slurm.shown = tuple(one for one, _ in pairs)
    site.slurm.known_devices = {one.job_id: {"gpu01": frozenset(indices)} for one, indices in pairs}
    all_held = {index for _, indices in pairs for index in indices} if held is None else held
    (first, *others) = site.slurm.known_nodes
    site.slurm.known_nodes = (replace(first, gpus_held=frozenset(all_held)), *others)


async def holder_of(site: Site, placement: Placement) -> JobHolder | ReplicaHolder | None:
    gpu = await site.gpu()
    return next(one.holder for one in gpu.instances if one.placement == placement)


async def test_an_instance_is_held_by_who_has_its_device(site: Site) -> None:
    plain = runs(1, **PLAIN, end_s=int(NOW_S) + 90)
    holds(site, (runs(0), {0}), (plain, {2}))
    gpu = await site.gpu()
    assert (gpu.name, gpu.node, gpu.cut_ago_s) == (site.inventory.gpus[0].uuid, "gpu01", None)
    assert {one.placement: one.holder for one in gpu.instances} == {
        ONES[0]: ReplicaHolder("vision/bert (job 814_0)", 60),
        ONES[1]: None,
        ONES[2]: JobHolder("job 901", 90),
        THREE: JobHolder("the last of its type", 0),
    }


async def test_what_slurm_can_not_give_is_another_s_and_moves_nobody_s_index(
    site: Site, tmp_path: Path
) -> None:
    cut, whole = site.inventory.gpus
    first, *others = cut.instances
    cut = replace(cut, instances=(replace(first, computes=()), *others))
    gpus = {"1g.10gb": 2, "3g.40gb": 1, "nvidia_h200": 1, "pad4": 3}
    site = Site(tmp_path, replace(site.inventory, gpus=(cut, whole)), node(gpus=gpus))
    holds(site, (runs(0), {0}))
    assert await holder_of(site, ONES[0]) == JobHolder("not Slurm's")
    assert await holder_of(site, ONES[1]) == ReplicaHolder("vision/bert (job 814_0)", 60)
    assert await holder_of(site, ONES[2]) is None


@pytest.mark.parametrize(
    ("one", "holder"),
    [
        (runs(0, state=JobState.COMPLETING), JobHolder("job 814_0", 0)),
        (runs(0, **PLAIN), JobHolder("job 900")),
        (runs(0, **PLAIN, end_s=5), JobHolder("job 900", 0)),
        # It needs two instances at a time, and its lease is made longer.
        (runs(0, tres={"gres/gpu:1g.10gb": "2"}, end_s=9), JobHolder("vision/bert (job 814_0)")),
    ],
)
async def test_who_can_not_move_stays(site: Site, one: JobView, holder: JobHolder) -> None:
    holds(site, (one, {0}))
    assert await holder_of(site, ONES[0]) == holder


async def test_what_jobs_hide_or_claim_of_others_stays(site: Site) -> None:
    holds(site, (runs(0), {0}), (runs(1), {0}), held={0, 1})
    assert [await holder_of(site, one) for one in ONES] == [JobHolder("?"), JobHolder("?"), None]
    holds(site, (runs(0, nodes=("gpu02",)), {1}))
    assert await holder_of(site, ONES[1]) == JobHolder("?")
    # It has ended since.
    holds(site, (runs(0), {1}), held=set())
    assert await holder_of(site, ONES[1]) is None


async def test_the_last_instance_of_each_type_stays_and_the_one_that_stays_anyhow_is_it(
    site: Site,
) -> None:
    holds(site, (runs(0), {0}), (runs(1, **PLAIN), {3}))
    assert await holder_of(site, ONES[0]) == JobHolder("vision/bert (job 814_0)")
    assert await holder_of(site, THREE) == JobHolder("job 901")
    site.slurm.known_nodes += (node("gpu02", states=frozenset({"DOWN"})),)
    holds(site, (runs(0), {0}))
    assert isinstance(await holder_of(site, ONES[0]), ReplicaHolder)
    assert await holder_of(site, THREE) is None


async def test_where_a_type_may_be_asked_for_anyhow_its_last_instance_may_go(site: Site) -> None:
    types = {"1g.10gb": 7, "3g.40gb": 2, "7g.80gb": 1}
    shapes = node(SHAPES_NODE, gpus=types, states=frozenset({"DOWN"}))
    site.slurm.known_nodes += (shapes,)
    assert [await holder_of(site, one) for one in (*ONES, THREE)] == [None] * 4
    assert (await site.gathered()).left_out == {}
    with pytest.raises(InvalidInputError, match="SW-REPARTITION-NODE"):
        await survey(site.settings, site.slurm, site.journal, [SHAPES_NODE])


MIXED = frozenset({"MIXED"})


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({"states": MIXED | {"DRAIN"}}, "Slurm says DRAIN"),
        ({"states": MIXED | {"MAINTENANCE"}}, "it is reserved"),
        (
            {"gpus": {"1g.10gb": 4}},
            "Slurm has gpu:1g.10gb:4, not gpu:1g.10gb:3,gpu:3g.40gb:1,gpu:nvidia_h200:1",
        ),
    ],
)
async def test_a_node_that_slurm_has_otherwise_is_left_out(
    site: Site, changes: dict[str, Any], why: str
) -> None:
    site.slurm.known_nodes = (node(**changes),)
    assert (await site.gathered()) == SitePlanInput({}, {"gpu01": why}, {})


async def test_a_node_that_nobody_has_looked_at_for_long_is_left_out(site: Site) -> None:
    site.journal.age_s = 86_400 + 7_200
    (why,) = (await site.gathered()).left_out.values()
    assert why == "its last survey is 26 h old: slicewise repartition survey gpu01"
    site.journal.surveyed = {}
    (why,) = (await site.gathered()).left_out.values()
    assert why == "it was never surveyed: slicewise repartition survey gpu01"


async def test_a_survey_of_another_version_says_nothing(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        site.journal, "inventories", lambda: {"gpu01": NodeSurvey(NOW_S, '{"v": 0}')}
    )
    assert "it was never surveyed" in (await site.gathered()).left_out["gpu01"]


async def test_a_node_that_is_not_cut_as_gres_conf_says_is_left_out(site: Site) -> None:
    text = site.gres_conf.read_text()
    site.gres_conf.write_text(text.replace("nvidia-cap", "nvidia-cap9"))
    assert "not cut as gres.conf says" in (await site.gathered()).left_out["gpu01"]
    site.gres_conf.write_text(text.replace("NodeName=gpu01", "NodeName=gpu[01-02]"))
    assert "gpu01 shares a line" in (await site.gathered()).left_out["gpu01"]


async def test_a_node_whose_gpus_have_one_mode_each_is_left_alone(site: Site) -> None:
    """Not one instance of such a GPU can be cut again while others stay: whoever waits for what."""
    with amd_node(EmulatedAmdGpu("MI300X-192GB", "cpx.nps4")) as driver:
        amd = read_any(driver.host_root)
    cpx = node("gpu02", gpus={"cpx.nps4": 8})
    site.slurm.known_nodes = (node(), cpx)
    site.journal.surveyed = {"gpu01": site.inventory, "gpu02": amd}
    found = await site.gathered()
    assert found.left_out == {
        "gpu02": "AMD changes the mode of whole GPUs only: Slicewise leaves it"
    }
    assert found.boards.keys() == {A100}


async def test_files_that_can_not_be_read_are_an_error(site: Site) -> None:
    site.gres_conf.unlink()
    with pytest.raises(InvalidInputError, match="SW-REPARTITION-CONF"):
        await site.gathered()


async def test_nodes_of_others_and_without_gpus_are_none(site: Site) -> None:
    site.slurm.known_nodes = (node(partitions=frozenset({"other"})), node("cpu01", gpus={}))
    assert await site.gathered() == SitePlanInput({}, {}, {})


def repartition(uuid: str, state: RepartitionState, ended_s: float | None = None) -> Repartition:
    planned = PlannedRepartition("gpu01", uuid, (*ONES, THREE), (THREE,), (), "", 0, 0)
    return Repartition(
        **vars(planned),
        repartition_id=7,
        author="root",
        state=state,
        started_s=NOW_S - 999,
        ended_s=ended_s,
    )


async def test_while_a_gpu_is_in_work_it_is_what_it_will_be_and_its_node_waits(site: Site) -> None:
    site.journal.running = (repartition(site.inventory.gpus[0].uuid, RepartitionState.RUNNING),)
    found = await site.gathered()
    assert found.left_out == {"gpu01": "repartition 7 is at work there"}
    assert found.layouts == {site.inventory.gpus[0].uuid: (THREE,)}
    assert found.boards[A100].gpus[0].in_work
    site.slurm.known_nodes = (node(states=frozenset({"MIXED", "DRAIN"})),)
    assert (await site.gathered()).boards == {}


async def test_a_gpu_that_is_in_work_elsewhere_is_not_planned(site: Site) -> None:
    """Two nodes say that they have it: of two repartitions of one GPU the journal refuses the
    second.
    """
    site = Site(site.slurm_conf.parent, site.inventory, node("gpu01"), node("gpu02"))
    site.journal.running = (repartition(site.inventory.gpus[0].uuid, RepartitionState.STUCK),)
    assert [one.node for one in (await site.a100()).gpus] == ["gpu01"]


@pytest.mark.parametrize("state", [RepartitionState.DONE, RepartitionState.ROLLED_BACK])
async def test_a_gpu_that_was_just_cut_or_was_to_be_is_known_as_such(
    site: Site, state: RepartitionState
) -> None:
    uuid, before = site.inventory.gpus[0].uuid, {RepartitionState.DONE: RepartitionState.CLOSED}
    site.journal.ended = (
        repartition(uuid, state, NOW_S - 40),
        repartition(uuid, before.get(state, RepartitionState.DONE), NOW_S - 400),
    )
    gpu, was_undone = await site.gpu(), state is RepartitionState.ROLLED_BACK
    assert (gpu.cut_ago_s, gpu.in_vain) == (40, was_undone)


THREE_G: dict[str, Any] = {
    **PLAIN,
    "held": False,
    "reason": "Resources",
    "tres": {"gres/gpu:3g.40gb": "1"},
    "eligible_s": int(NOW_S) - 50,
}


def waits(job_id: int, **changes: Any) -> JobView:
    return replace(job(0), job_id=job_id, **(THREE_G | changes))


async def test_who_waits_for_instances_is_demand_and_who_waits_for_quota_is_none(
    site: Site,
) -> None:
    others = ("QOSGrpBilling", "AssocGrpBillingRunMinutes", "Dependency", "JobHeldAdmin", "None")
    site.slurm.shown = (
        waits(1),
        waits(2, reason="Priority", eligible_s=None, submit_s=int(NOW_S) - 7),
        waits(3, untouched=frozenset({1, 2}), eligible_s=int(NOW_S) + 9),
        waits(4, reason=f"ReqNodeNotAvail, UnavailableNodes:{SHAPES_NODE}"),
        *(waits(10 + number, reason=reason) for number, reason in enumerate(others)),
        waits(20, partition="other"),
        waits(21, tres={"gres/gpu:3g.71gb": "1"}),
        waits(22, held=True),
    )
    found = (await site.a100()).demand
    assert [(one.profile, one.waited_s) for one in found.waiting] == [
        ("3g.40gb", waited_s) for waited_s in (50, 7, 0, 0, 50)
    ]
    assert found.expected == {"3g.40gb": 5.0}


async def test_who_is_guaranteed_gpus_that_are_busy_is_demand_though_its_quota_is_lent(
    site: Site,
) -> None:
    """Two of three fit into the guarantee of 7,000 millislices, and a GPU is free for one."""
    site.journal.nominal = 7000
    site.slurm.shown = tuple(waits(n, reason="QOSGrpBilling") for n in (1, 2, 3))
    waiting = (await site.a100()).demand.waiting
    assert [(one.profile, one.is_guaranteed) for one in waiting] == [("3g.40gb", True)]


async def test_what_is_beyond_a_tenants_quota_is_no_demand(site: Site) -> None:
    """A 3g costs 3,500 millislices; of 14,000, 1,000 are held."""
    site.journal.nominal = 7000
    tasks = waits(1, untouched=frozenset(range(90)), priority=5)
    first = waits(2, tres={"gres/gpu:1g.10gb": "1"}, priority=9)
    others = waits(3, account="root", qos="normal")
    site.slurm.shown = (runs(0), tasks, first, others)
    waiting = (await site.a100()).demand.waiting
    assert Counter(one.profile for one in waiting) == {"1g.10gb": 1, "3g.40gb": 3 + 1}


async def test_who_is_within_the_guarantee_of_a_named_type_is_owed_it(site: Site) -> None:
    site.journal.types = {"3g.40gb": 2}
    site.slurm.shown = (
        waits(1, untouched=frozenset(range(3)), priority=5),
        waits(2, tres={"gres/gpu:1g.10gb": "1"}),
        waits(3, qos="slicewise_vision_borrowed"),
        # While its tenant takes quota back, its instance is made.
        waits(4, reason="QOSGrpBilling", priority=9),
    )
    waiting = (await site.a100()).demand.waiting
    assert Counter((one.profile, one.is_owed) for one in waiting) == {
        ("3g.40gb", True): 2,
        ("3g.40gb", False): 3,
        ("1g.10gb", False): 1,
    }
    site.journal.types = {}
    waiting = (await site.a100()).demand.waiting
    assert not any(one.is_owed for one in waiting)
    assert len(waiting) == 5


async def test_who_waits_for_a_node_that_is_down_is_owed_nothing(site: Site) -> None:
    site.journal.types = {"3g.40gb": 2}
    site.slurm.shown = (waits(1, reason="ReqNodeNotAvail, UnavailableNodes:gpu07"), waits(2))
    assert [one.is_owed for one in (await site.a100()).demand.waiting] == [True]


async def test_who_asks_for_several_instances_is_owed_none(site: Site) -> None:
    """They could come to be on several nodes, and jobs on loan would have ended in vain."""
    site.journal.types = {"3g.40gb": 3}
    site.slurm.shown = (waits(1, tres={"gres/gpu:3g.40gb": "2"}), waits(2))
    waiting = (await site.a100()).demand.waiting
    assert Counter(one.is_owed for one in waiting) == {False: 2, True: 1}


def moves(preempts: int) -> ReplicaHolder:
    tenant = "vision" if preempts else ""
    return ReplicaHolder("vision/bert (job 814_0)", 60, preempts=preempts, tenant=tenant)


@pytest.mark.parametrize(
    ("types", "nominal", "changes", "preempts"),
    [
        ({"1g.10gb": 4, "3g.40gb": 1}, 20_000, {}, 2),
        ({"1g.10gb": 2, "3g.40gb": 1}, 20_000, {}, 0),
        # Both jobs hold 1,000, and one waits for 3,500. A type that the quota does not name has no
        # bound but the slices.
        ({"3g.40gb": 1}, 20_000, {}, 14),
        ({"3g.40gb": 1}, 6500, {}, 1),
        ({"3g.40gb": 1}, 6499, {}, 0),
        ({"3g.40gb": 1}, 20_000, {"qos": "slicewise_vision_borrowed"}, 0),
    ],
)
async def test_slurm_preempts_for_a_successor_that_is_within_the_guarantee_too(
    site: Site, types: dict[str, int], nominal: int, changes: dict[str, Any], preempts: int
) -> None:
    site.journal.types, site.journal.nominal = types, nominal
    replica = runs(0, **{"qos": "slicewise_vision"} | changes)
    holds(site, (replica, {0}), (runs(5, **PLAIN), {2}))
    site.slurm.shown += (waits(1),)
    assert await holder_of(site, ONES[0]) == moves(preempts)


async def test_what_waits_on_borrowed_quota_takes_the_room_of_a_successor(site: Site) -> None:
    """Of 20,000 millislices the replica holds 1,000, and jobs wait for 3,500 or 17,500."""
    site.journal.types = {"3g.40gb": 1}
    holds(site, (runs(0, qos="slicewise_vision"), {0}), (runs(5, **PLAIN), {2}))
    shown, lent = site.slurm.shown, {"qos": "slicewise_vision_borrowed", "reason": "QOSGrpBilling"}
    for tasks in (1, 5):
        more = waits(2, untouched=frozenset(range(tasks)), **lent)
        site.slurm.shown = (*shown, waits(1), more)
        assert await holder_of(site, ONES[0]) == moves({1: 11, 5: 0}[tasks])


async def test_no_successor_is_sure_of_room_while_a_record_of_its_tenant_is_unreadable(
    site: Site,
) -> None:
    site.journal.types = {"3g.40gb": 1}
    holds(site, (runs(0, qos="slicewise_vision"), {0}), (runs(5, **PLAIN), {2}))
    shown = site.slurm.shown
    for account in ("nlp", "vision"):
        qos = f"slicewise_{account}"
        unread = runs(7, account=account, qos=qos, tres={}, unread=frozenset({"tres"}))
        site.slurm.shown = (*shown, waits(1), unread)
        assert await holder_of(site, ONES[0]) == moves(14 if account == "nlp" else 0)


async def test_jobs_on_loan_may_end_once_their_term_is_over_if_somebody_is_owed_a_type(
    site: Site,
) -> None:
    site.journal.types = {"3g.40gb": 1}
    lent = {**PLAIN, "qos": "slicewise_lab_borrowed", "start_s": int(NOW_S) - 90}
    own = {**PLAIN, "start_s": int(NOW_S) - 90}
    holds(site, (runs(0, **lent), {0}), (runs(1, **own), {1}))
    assert await holder_of(site, ONES[0]) == JobHolder("job 900")
    site.slurm.shown += (waits(1),)
    assert await holder_of(site, ONES[0]) == JobHolder("job 900", on_loan_s=90)
    assert await holder_of(site, ONES[1]) == JobHolder("job 901")
    site.term_s = 91
    assert await holder_of(site, ONES[0]) == JobHolder("job 900")


async def test_a_job_on_loan_that_would_lose_several_instances_stays(site: Site) -> None:
    site.journal.types = {"3g.40gb": 1}
    lent = {**PLAIN, "qos": "slicewise_lab_borrowed", "start_s": int(NOW_S) - 90}
    holds(site, (runs(0, **lent, tres={"gres/gpu:1g.10gb": "2"}), {0, 1}))
    site.slurm.shown += (waits(1),)
    assert await holder_of(site, ONES[0]) == JobHolder("job 900")


def ran(from_ago_s: int, to_ago_s: int | None, **tres: str) -> RunRecord:
    end_s = None if to_ago_s is None else int(NOW_S) - to_ago_s
    types = {f"gres/gpu:{name}": count for name, count in tres.items()}
    return a_run_record(int(NOW_S) - from_ago_s, end_s, tres=types)


async def test_what_ran_lately_is_expected_but_for_what_other_nodes_serve(site: Site) -> None:
    site.slurm.records = (
        ran(7200, 1800, **{"1g.10gb": "3"}),
        ran(900, None, **{"1g.10gb": "1", "3g.40gb": "2"}),
    )
    assert (await site.a100()).demand.expected == {"1g.10gb": 1.75, "3g.40gb": 0.5}
    site.slurm.known_nodes += (node("gpu02", gpus={"1g.10gb": 1}),)
    assert (await site.a100()).demand.expected == {"1g.10gb": 0.75, "3g.40gb": 0.5}
    assert ("runs", int(NOW_S) - 86_400) in site.slurm.done


async def test_what_guarantees_need_is_what_other_nodes_do_not_have(
    site: Site, inventory: Inventory
) -> None:
    site.slurm.records = (replace(ran(50_000, 40_000, **{"1g.10gb": "5"}), account="vision"),)
    assert (await site.a100()).demand.guaranteed == {"1g.10gb": 5}
    site.slurm.known_nodes += (node("gpu02", states=frozenset({"IDLE", "RESERVED"})),)
    site.journal.surveyed = {**site.journal.surveyed, "gpu02": inventory}
    site.write(["gpu01", "gpu02"])
    assert (await site.a100()).demand.guaranteed == {"1g.10gb": 2}
    site.journal.nominal = 4_000
    assert (await site.a100()).demand.guaranteed == {"1g.10gb": 1}


async def test_a_repartition_takes_as_long_as_the_last_ones_did(site: Site) -> None:
    of = {
        RepartitionStep.CUT: 5.0,
        RepartitionStep.TELL: 3.0,
        RepartitionStep.VERIFY: 1.0,
        RepartitionStep.RESUME: 0.2,
    }
    site.journal.seconds = {step: [seconds, seconds] for step, seconds in of.items()}
    assert (await site.a100()).terms.repartition_s == 60
    slow = {step: [seconds * 10, seconds, seconds] for step, seconds in of.items()}
    # Moves that found no replica say nothing about how long a move takes.
    site.journal.seconds = slow | {RepartitionStep.MOVE: [0.1, 30.0, 20.0, 0.2, 25.0]}
    holds(site, (runs(0), {1}), (runs(1), {0}))
    found = await site.a100()
    assert found.terms.repartition_s == 9
    assert {one.holder for one in found.gpus[0].instances} >= {
        ReplicaHolder("vision/bert (job 814_0)", 25)
    }


async def test_what_is_gathered_can_be_planned_with(site: Site, inventory: Inventory) -> None:
    site.slurm.known_nodes += (node("gpu02", states=frozenset({"DOWN"})),)
    holds(site, (runs(1, **PLAIN, tres={"gres/gpu:3g.40gb": "1"}), {3}))
    site.slurm.shown += (waits(30, tres={"gres/gpu:3g.40gb": "1"}),)
    found = await site.a100()
    (step,) = plan(found.board, found.gpus, found.demand, found.terms)
    assert (step.gpu, step.node) == (inventory.gpus[0].uuid, "gpu01")
    assert (step.destroy, step.create) == (ONES, (Placement("3g.40gb", 0, 4),))


def wants_a_3g(site: Site) -> None:
    """The other 3g, at index 3, is held; three 1g are free."""
    three = {"gres/gpu:3g.40gb": "1"}
    site.slurm.known_nodes += (node("gpu02", states=frozenset({"DOWN"})),)
    holds(site, (runs(1, **PLAIN, tres=three), {3}))
    site.slurm.shown += (waits(30, tres=three),)


async def test_a_step_is_planned_so_that_slurm_has_an_order_of_devices(site: Site) -> None:
    wants_a_3g(site)
    found = await site.gathered()
    (due,) = cuts_due(found).now
    assert due.after == (Placement("3g.40gb", 0, 4), THREE)
    of = found.boards[A100]
    (step,) = plan(of.board, of.gpus, of.demand, of.terms)
    look = found.looks["gpu01"]

    def created(*types: str) -> GpuRepartition:
        return GpuRepartition(step.gpu, step.destroy, types)

    assert has_order(look, [created("3g.40gb")])
    # Before the 3g at index 3 there are three places, behind it four: for the H200, too.
    assert has_order(look, [created(*["1g.10gb"] * 4)])
    assert not has_order(look, [created(*["1g.10gb"] * 5)])
    other = GpuRepartition("", (), ("1g.10gb",))
    assert not has_order(look, [created(*["1g.10gb"] * 4), other])
    assert not has_order(replace(look, positions="its lines are shared"), [created("3g.40gb")])


@pytest.mark.parametrize(
    ("gpus_held", "can_be"), [({3}, True), ({0, 3}, True), ({0, 1, 2, 3}, True), ({3, 5}, False)]
)
async def test_devices_of_instances_that_go_need_no_place(
    site: Site, inventory: Inventory, gpus_held: set[int], can_be: bool
) -> None:
    """The three 1g at indices 0 to 2 go, whoever holds them until then. At 5 is a pad."""
    wants_a_3g(site)
    look = (await site.gathered()).looks["gpu01"]
    held = replace(look, node=replace(look.node, gpus_held=frozenset(gpus_held)))
    repartition = GpuRepartition(inventory.gpus[0].uuid, ONES, ("3g.40gb",))
    assert has_order(held, [repartition]) is can_be


async def test_what_slurm_has_no_order_for_is_cut_for_who_waits_alone(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    wants_a_3g(site)
    found = await site.gathered()
    one = Placement("1g.10gb", 2, 1)

    def full(*_: object) -> Iterator[GpuPlan]:
        of = found.boards[A100]
        for step in plan(of.board, of.gpus, of.demand, of.terms):
            yield replace(step, destroy=ONES, create=(one,), asked=step.asked)

    monkeypatch.setattr("slicewise.slurm_plugin.rules.mig.cuts_due.plan", full)
    assert one in cuts_due(found).now[0].after
    asked = ("3g.40gb",)
    monkeypatch.setattr(
        "slicewise.slurm_plugin.rules.mig.cuts_due.has_order",
        lambda _, them: them[-1].created == asked,
    )
    assert cuts_due(found).now[0].after == (Placement("3g.40gb", 0, 4), THREE)


async def test_what_slurm_has_no_order_for_at_all_is_not_planned_and_said(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    wants_a_3g(site)
    found = await site.gathered()
    assert not cuts_due(found).barred
    monkeypatch.setattr("slicewise.slurm_plugin.rules.mig.cuts_due.has_order", lambda *_: False)
    due = cuts_due(found)
    assert (due.now, due.barred) == ((), {"3g.40gb": ("gpu01",)})
    (line,) = barred_lines(due)
    assert line.startswith("No 3g.40gb can be created on gpu01: Slurm has no order of devices")


def test_a_nodes_lines_say_the_same_as_the_whole_file(site: Site) -> None:
    site.write(["gpu01", "gpu02"])
    conf, gres = site.slurm_conf.read_text(), site.gres_conf.read_text()
    alone = lines_by_node(conf)["gpu02"], lines_by_node(gres)["gpu02"]
    assert node_positions(*alone, "gpu02") == node_positions(conf, gres, "gpu02")
    assert "gpu01" not in "".join(alone)


def test_lines_for_several_nodes_are_every_nodes() -> None:
    text = "# NodeName=gpu01\nNodeName=gpu[01-02] a\n Name=gpu b\nnodename=gpu03 c\nPort=1"
    assert lines_by_node(text) == {
        "": "NodeName=gpu[01-02] a\n Name=gpu b",
        "gpu03": "NodeName=gpu[01-02] a\n Name=gpu b\nnodename=gpu03 c",
    }


class Nodes:
    """Answers ``slicewise node probe``; gpu02 does not."""

    def __init__(self, printed: str) -> None:
        self.printed = printed
        self.asked: list[tuple[str, str, tuple[str, ...]]] = []

    async def run_on(self, node: str, reservation: str, argv: Any, deadline_s: float) -> str:
        self.asked.append((node, reservation, tuple(argv)))
        if node == "gpu02":
            raise OutsideError("SW-SLURM-FAILED", "no core is free")
        return self.printed


async def test_a_survey_keeps_what_each_node_says_and_tells_who_did_not_answer(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    site.slurm.known_nodes = tuple(map(node, ("gpu01", "gpu02", "gpu03")))
    nodes = Nodes(json.dumps(asdict(site.inventory)))
    monkeypatch.setattr(node_command, "run_on", nodes.run_on)
    found = await survey(site.settings, site.slurm, site.journal)
    assert (tuple(found.seen), found.failed) == (("gpu01", "gpu03"), {"gpu02": "no core is free"})
    assert found.seen["gpu01"] == site.inventory
    assert set(site.journal.saved) == {"gpu01", "gpu03"}
    probe = ("slicewise", "node", "probe", "--json")
    on_node = site.settings.repartition.on_node
    assert nodes.asked[0] == ("gpu01", "", (*on_node, *probe))
    site.journal.surveyed = {}
    saved = {
        name: NodeSurvey(time.time(), json.dumps(told)) for name, told in site.journal.saved.items()
    }
    monkeypatch.setattr(site.journal, "inventories", lambda: saved)
    assert "gpu01" not in (await site.gathered()).left_out


async def test_one_nodes_survey_asks_nobody_else_and_an_unknown_one_is_refused(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    nodes = Nodes("what is this")
    monkeypatch.setattr(node_command, "run_on", nodes.run_on)
    with pytest.raises(InvalidInputError, match="SW-REPARTITION-NODE"):
        await survey(site.settings, site.slurm, site.journal, ["gpu01", "gpu99"])
    assert nodes.asked == []
    found = await survey(site.settings, site.slurm, site.journal, ["gpu01"])
    assert found.seen == {}
    assert "can't be read" in found.failed["gpu01"]


async def test_a_node_s_word_of_its_board_counts_for_itself_alone(site: Site) -> None:
    """The first node says that its A100 can be cut in one way only."""
    cut, whole = site.inventory.gpus
    profiles = {"7g.80gb": cut.board.profiles["7g.80gb"]}
    forged = replace(
        site.inventory, gpus=(replace(cut, board=replace(cut.board, profiles=profiles)), whole)
    )
    first, *others = (node("gpu01"), node("gpu02"), node("gpu03"))
    site = Site(site.slurm_conf.parent, site.inventory, first, *others)
    site.journal.surveyed = {**site.journal.surveyed, "gpu01": forged}
    found = await site.a100()
    assert found.board.profiles.keys() == cut.board.profiles.keys()
    assert {gpu.node for gpu in found.gpus} == {"gpu02", "gpu03"}


async def test_a_node_has_one_vote_however_many_gpus_it_says_it_has(site: Site) -> None:
    """Its devices are as many as Slurm knows: each a GPU, in place of seven of one."""
    cut, whole = site.inventory.gpus
    small = replace(cut, board=replace(cut.board, compute_slices=1))
    more = (
        replace(small, index=nth, uuid=f"{cut.uuid[:-1]}{nth}", instances=()) for nth in range(2, 8)
    )
    site = Site(site.slurm_conf.parent, site.inventory, node("gpu01"), node("gpu02"), node("gpu03"))
    forged = replace(site.inventory, gpus=(small, whole, *more))
    site.journal.surveyed = {**site.journal.surveyed, "gpu01": forged}
    assert (await site.gathered()).left_out == {}
    found = await site.a100()
    assert found.board.compute_slices == cut.board.compute_slices
    assert {gpu.node for gpu in found.gpus} == {"gpu02", "gpu03"}


async def test_the_overview_knows_where_instances_lie_and_their_indices(site: Site) -> None:
    records = node_records(site.settings, site.journal)  # type: ignore[arg-type]
    looks = node_looks(site.settings, records, site.slurm.known_nodes, NOW_S)
    cut, whole = surveyed_gpus(looks)["gpu01"]
    assert (cut.index, cut.memory_slices) == (0, 8)
    assert cut.places == (*((one, n) for n, one in enumerate(ONES)), (THREE, 3))
    assert (whole.index, whole.places) == (1, ((Placement("", 0, 8), 4),))


async def test_a_survey_unlike_slurm_s_files_is_of_no_use_to_the_overview(site: Site) -> None:
    site.gres_conf.write_text(site.gres_conf.read_text().replace("nvidia-cap", "other-cap"))
    records = node_records(site.settings, site.journal)  # type: ignore[arg-type]
    assert surveyed_gpus(node_looks(site.settings, records, site.slurm.known_nodes, NOW_S)) == {}
    site.gres_conf.write_text("")
    records = node_records(site.settings, site.journal)  # type: ignore[arg-type]
    assert surveyed_gpus(node_looks(site.settings, records, site.slurm.known_nodes, NOW_S)) == {}
    site.journal.surveyed = {}
    records = node_records(site.settings, site.journal)  # type: ignore[arg-type]
    assert surveyed_gpus(node_looks(site.settings, records, site.slurm.known_nodes, NOW_S)) == {}
