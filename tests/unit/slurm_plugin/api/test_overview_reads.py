"""Tests that the daemon answers an overview from memory, as one that leads, once a second."""

import asyncio
import time
from collections.abc import Collection, Mapping
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest
from builders.nodes import a_node
from builders.tenants import policy_of, tenant
from builders.why_world import job, running
from stand_ins.scripted import ScriptedLedger, ScriptedSlurm, settings, sync_of

from slicewise.cluster.language.errors import UnreachableError
from slicewise.cluster.language.jobs import JobView
from slicewise.cluster.language.leader import ALONE
from slicewise.cluster.rpc.energy_messages import EnergyPostRequest, ToldPower
from slicewise.cluster.rpc.key_messages import GrantsAnswer
from slicewise.cluster.rpc.overview_messages import OverviewAnswer, OverviewRequest
from slicewise.cluster.settings.file import OidcSettings
from slicewise.slurm_plugin.api import overview_reads
from slicewise.slurm_plugin.api.access import Principal
from slicewise.slurm_plugin.api.guests import GuestLogins
from slicewise.slurm_plugin.api.keys import ServiceKeys
from slicewise.slurm_plugin.api.rate_limit import RateLimiter
from slicewise.slurm_plugin.api.reads import Reads
from slicewise.slurm_plugin.rules.accounting.money_budgets import MoneyBudgetStatus
from slicewise.slurm_plugin.rules.overview.overview import overview
from slicewise.slurm_plugin.rules.overview.overview_facts import OverviewFacts
from slicewise.slurm_plugin.state import node_power
from slicewise.slurm_plugin.state.cluster_state import ClusterState
from slicewise.slurm_plugin.state.node_power import FRESH_S

pytestmark = pytest.mark.usefixtures("clock")

ALICE = Principal(61001, "alice", frozenset({"vision"}))
ROOT = Principal(0, "root", None)
NODE = a_node("node1", "MIXED", gpus_allotted={"1g.10gb": 1}, gpus_held=frozenset({0}))


class OtherLeads:
    def leads(self) -> bool:
        return False

    def require(self) -> None:
        raise UnreachableError("SW-DAEMON-STANDBY", "Another daemon leads.")


class Detailed(ScriptedSlurm):
    """Notes of which jobs it was asked for the GPUs, and may take time to answer."""

    def __init__(self, *jobs: JobView) -> None:
        super().__init__(*jobs)
        self.asked: list[list[int]] = []
        self.answers: asyncio.Event | None = None

    async def devices(
        self, jobs: Collection[JobView]
    ) -> Mapping[int, Mapping[str, frozenset[int]]]:
        self.asked.append(sorted(job.job_id for job in jobs))
        if self.answers is not None:
            await self.answers.wait()
        self._see()
        return await super().devices(jobs)


def at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let each question be about a moment of its own."""
    monkeypatch.setattr(overview_reads, "_FRESH_S", -1.0)
    monkeypatch.setattr(overview_reads, "_SHARE", -1.0)


class Grants:
    """Valid keys that the ledger gives, unless it is down."""

    def __init__(self) -> None:
        self.is_down = False

    def grants(self, *_: object) -> GrantsAnswer:
        if self.is_down:
            raise UnreachableError("SW-DATABASE-DOWN", "down")
        return GrantsAnswer()


@pytest.fixture
async def state(monkeypatch: pytest.MonkeyPatch) -> ClusterState:
    slurm = ScriptedSlurm(running(1), job(9, "QOSGrpBilling"), job(8, "Resources", account="nlp"))
    slurm.known_nodes = (NODE,)
    state = sync_of(slurm)
    state.set_policy(policy_of(tenant("vision", 2000), tenant("nlp", 3000)), {})
    await state.turn()
    slurm.done.clear()
    return state


async def asked(reads: Reads, principal: Principal = ROOT) -> OverviewAnswer:
    answer = await reads.handlers()[OverviewRequest](OverviewRequest(), principal)
    assert isinstance(answer, OverviewAnswer)
    return answer


async def test_it_needs_neither_slurm_nor_the_ledger(state: ClusterState):
    down = UnreachableError("SW-DATABASE-DOWN", "down")
    ledger = ScriptedLedger(failures={"policy": [down], "change_id": [down]})
    slurm = ScriptedSlurm()
    slurm.failure = UnreachableError("SW-SLURM-DOWN", "down")
    answer = await asked(Reads(settings(), slurm, ledger, state))
    assert [one.name for one in answer.tenants] == ["nlp", "vision"]
    assert [one.job for one in answer.waiting] == ["8", "9"]
    assert answer.slices.used_millislices == 1000
    assert answer.gpus[0].instances[0].job == "1"
    assert (answer.cluster, answer.mode, answer.complete) == ("cluster", "enforce", True)
    assert slurm.done == []


def draws(node: str, *boards_mw: int) -> EnergyPostRequest:
    boards = tuple(
        ToldPower(gpu_uuid=f"GPU-{nth}", power_mw=power_mw)
        for nth, power_mw in enumerate(boards_mw)
    )
    return EnergyPostRequest(node=node, seen_by="m1", boards=boards, hours=())


async def test_watts_are_those_that_meters_told_lately(
    state: ClusterState, monkeypatch: pytest.MonkeyPatch
):
    at_once(monkeypatch)
    now_s = [1000.0]
    monkeypatch.setattr(node_power, "time", SimpleNamespace(monotonic=lambda: now_s[0]))
    reads = Reads(settings(), ScriptedSlurm(), ScriptedLedger(), state)
    assert (await asked(reads)).power is None
    state.node_power.hear(draws("node1", 70_000, 630_000), {})
    now_s[0] += FRESH_S
    state.node_power.hear(draws("elsewhere", 500_000), {})
    power = (await asked(reads)).power
    assert power is not None
    assert power.words == "1.20 kW of 3 boards on 2 of 2 nodes"
    now_s[0] += 1
    power = (await asked(reads)).power
    assert power is not None
    assert power.words == "0.50 kW of 1 board on 1 of 2 nodes"
    now_s[0] += FRESH_S
    assert (await asked(reads)).power is None


async def test_budgets_in_money_are_told_as_they_were_last_looked_at(state: ClusterState):
    state.money_budgets = (MoneyBudgetStatus("vision", 1_000_000, 0, 0.8, 0),)
    for reader in (ROOT, ALICE):
        answer = await asked(Reads(settings(), ScriptedSlurm(), ScriptedLedger(), state), reader)
        assert [one.what for one in answer.attention if one.code == "SW-BUDGET-LOW"] == [
            "vision has used 100 % of its budget in money"
        ]


async def test_each_reader_is_told_own_things_and_the_same_for_a_second(
    state: ClusterState, monkeypatch: pytest.MonkeyPatch
):
    reads = Reads(settings(), ScriptedSlurm(), ScriptedLedger(), state)
    first, alices = await asked(reads), await asked(reads, ALICE)
    assert [one.name for one in alices.tenants] == ["vision"]
    other = replace(ALICE, tenants=frozenset({"nlp"}))
    assert [one.name for one in (await asked(reads, other)).tenants] == ["nlp"]
    assert await asked(reads) is first
    assert await asked(reads, ALICE) is alices
    at_once(monkeypatch)
    assert await asked(reads) is not first


async def test_one_answer_is_made_for_all_screens_of_a_reader_and_rarely_if_it_is_long(
    state: ClusterState, monkeypatch: pytest.MonkeyPatch
):
    made: list[Principal] = []

    def slowly(facts: OverviewFacts, principal: Principal) -> OverviewAnswer:
        made.append(principal)
        time.sleep(0.05)
        return overview(facts, principal)

    monkeypatch.setattr(overview_reads, "overview", slowly)
    monkeypatch.setattr(overview_reads, "_FRESH_S", 0.0)
    monkeypatch.setattr(overview_reads, "_SHARE", 10_000.0)
    reads = Reads(settings(), ScriptedSlurm(), ScriptedLedger(), state)
    found = await asyncio.gather(*(asked(reads) for _ in range(5)))
    assert await asked(reads) is found[0]
    assert made == [ROOT]
    monkeypatch.setattr(overview_reads, "_SHARE", 0.0)
    assert await asked(reads) is not found[0]


async def test_slurm_is_asked_once_which_instance_each_job_has(
    state: ClusterState, monkeypatch: pytest.MonkeyPatch
):
    at_once(monkeypatch)
    monkeypatch.setattr(overview_reads, "_PATIENCE_S", 60.0)
    slurm = Detailed(running(1), replace(running(2), start_s=1))
    slurm.known_devices = {1: {"node1": frozenset({0})}, 2: {"node1": frozenset({1})}}
    slurm.known_nodes = (replace(NODE, gpus_held=frozenset({0, 1})),)
    state = sync_of(slurm)
    await state.turn()
    reads = Reads(settings(), slurm, ScriptedLedger(), state)
    for _ in range(3):
        found = (await asked(reads)).gpus[0].instances
        assert [one.job for one in found[:3]] == ["1", "2", ""]
    assert slurm.asked == [[1, 2]]
    slurm.shown = (*slurm.shown, running(3))
    await state.turn()
    await asked(reads)
    assert slurm.asked == [[1, 2], [3]]


async def test_slurm_is_asked_for_some_jobs_in_each_look(
    state: ClusterState, monkeypatch: pytest.MonkeyPatch
):
    at_once(monkeypatch)
    monkeypatch.setattr(overview_reads, "_PATIENCE_S", 60.0)
    slurm = Detailed(*map(running, range(1, 46)))
    slurm.known_nodes = (replace(NODE, gpus={"1g.10gb": 56}),)
    state = sync_of(slurm)
    await state.turn()
    reads = Reads(settings(), slurm, ScriptedLedger(), state)
    for _ in range(4):
        await asked(reads)
    assert [len(jobs) for jobs in slurm.asked] == [20, 20, 5]
    assert sorted(one for jobs in slurm.asked for one in jobs) == list(range(1, 46))


async def test_what_breaks_a_reading_is_in_the_log(
    state: ClusterState, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
):
    monkeypatch.setattr(overview_reads, "_PATIENCE_S", 60.0)
    monkeypatch.setattr(overview_reads, "node_records", lambda *_: {}["none"])
    reads = Reads(settings(), ScriptedSlurm(), ScriptedLedger(), state)
    assert (await asked(reads)).cluster == "cluster"
    assert "request_failed" in caplog.text


async def test_a_slurm_that_does_not_answer_holds_no_reader_up_and_is_left_alone(
    state: ClusterState, monkeypatch: pytest.MonkeyPatch
):
    at_once(monkeypatch)
    monkeypatch.setattr(overview_reads, "_PATIENCE_S", 0.01)
    slurm = Detailed(running(1), replace(running(2), start_s=1))
    slurm.known_nodes = (replace(NODE, gpus_held=frozenset({0, 1})),)
    state = sync_of(slurm)
    await state.turn()
    reads = Reads(settings(), slurm, ScriptedLedger(), state)
    slurm.answers = asyncio.Event()
    for _ in range(2):
        found = (await asked(reads)).gpus[0].instances
        assert [one.job for one in found[:2]] == ["2", "1"]
    slurm.failure = UnreachableError("SW-SLURM-DOWN", "down")
    slurm.answers.set()
    await asyncio.sleep(0)
    for _ in range(2):
        await asked(reads)
    assert slurm.asked == [[1, 2]]


async def test_a_daemon_that_stands_by_sends_readers_to_the_one_that_leads(state: ClusterState):
    state._leader = OtherLeads()  # type: ignore[assignment]
    with pytest.raises(UnreachableError, match="SW-DAEMON-STANDBY"):
        await asked(Reads(settings(), ScriptedSlurm(), ScriptedLedger(), state))


async def test_a_ledger_that_answers_no_more_is_told_of_until_it_answers(
    state: ClusterState, monkeypatch: pytest.MonkeyPatch
):
    at_once(monkeypatch)
    ledger: Any = ScriptedLedger()
    monkeypatch.setattr(type(ledger), "keys", grants := Grants())
    reads = Reads(settings(), ScriptedSlurm(), ledger, state)
    who = frozenset({0})
    keys = ServiceKeys(
        ledger,
        state,
        reads,
        ALONE,
        guests=GuestLogins(ledger, OidcSettings(), ALONE, RateLimiter()),
        rates=RateLimiter(),
        operators=who,
        aliases={},
    )

    async def codes() -> list[str]:
        return [one.code for one in (await asked(reads)).attention]

    await keys.turn()
    assert "SW-DATABASE-DOWN" not in await codes()
    state.ledger_heard_s -= 180
    grants.is_down = True
    with pytest.raises(UnreachableError):
        await keys.turn()
    assert "SW-DATABASE-DOWN" in await codes()
    grants.is_down = False
    await keys.turn()
    assert "SW-DATABASE-DOWN" not in await codes()
