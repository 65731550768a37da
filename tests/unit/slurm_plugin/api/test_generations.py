"""Tests which generations the daemon records, and to which users it shows them."""

from typing import Any

import pytest
from builders.service_views import a_generation
from stand_ins.scripted import ScriptedLedger, ScriptedSlurm, job, settings, sync_of

from slicewise.cluster.language.errors import InvalidInputError, UnreachableError
from slicewise.cluster.language.jobs import JobState, JobView
from slicewise.cluster.rpc.read_messages import GenerationsRequest
from slicewise.slurm_plugin.api.access import Principal
from slicewise.slurm_plugin.api.generations import ServiceGenerations
from slicewise.slurm_plugin.api.reads import Reads
from slicewise.slurm_plugin.daemon.charging_loop import ChargingLoop

pytestmark = pytest.mark.usefixtures("clock")

ALICE = Principal(61001, "alice", frozenset({"vision"}))
BOB = Principal(61002, "bob", frozenset({"nlp"}))
ROOT = Principal(0, "root", None)


class World:
    def __init__(self, mode: str = "enforce", *jobs: JobView) -> None:
        self.ledger: Any = ScriptedLedger()
        self.slurm = ScriptedSlurm(*jobs or (job(0), job(1)))
        self.cluster_state = sync_of(self.slurm, mode)
        reads = Reads(settings(mode), self.slurm, self.ledger, self.cluster_state)
        self.generations = ServiceGenerations(self.ledger, self.cluster_state, reads)

    def services(self) -> list[tuple[str, str]]:
        rows = self.ledger.audit.statement("vision", 0, 2000).rows
        return [(row.run.task, row.service) for row in rows]

    async def shown_to(
        self, user: Principal, name: str = "bert", tenant: str | None = None
    ) -> list[int]:
        (handle,) = self.generations.handlers().values()
        answer: Any = await handle(GenerationsRequest.of(name=name, tenant=tenant), user)
        return [one.array_job_id for one in answer.generations]


async def test_each_is_recorded_once_with_what_was_submitted():
    world = World()
    await world.cluster_state.turn()
    await world.generations.turn()
    await world.generations.turn()
    (found,) = world.ledger.recorded
    assert (found.array_job_id, found.tenant, found.name) == (814, "vision", "bert")
    (view,) = world.cluster_state.view.services
    assert (found.directives, found.author) == (view.directives, view.user)


async def test_what_could_not_be_written_is_written_at_the_next_turn():
    world = World()
    await world.cluster_state.turn()
    down = UnreachableError("SW-DATABASE-DOWN", "The database does not answer.")
    world.ledger.failures["record"] = [down]
    with pytest.raises(UnreachableError):
        await world.generations.turn()
    await world.generations.turn()
    assert len(world.ledger.recorded) == 1


@pytest.mark.parametrize("mode", ["enforce", "observe"])
async def test_statements_name_what_is_charged_also_by_a_daemon_that_changes_nothing(mode: str):
    world = World(mode, job(0, JobState.RUNNING))
    await world.cluster_state.turn()
    charging: Any = (settings(mode), world.slurm, world.ledger, world.cluster_state)
    await ChargingLoop(*charging).turn()
    assert world.services() == [("814_0", "")]
    # Recorded later, it names what was charged before, too.
    await world.generations.turn()
    assert world.services() == [("814_0", "bert")]


async def test_they_are_shown_to_their_tenants_users_and_operators():
    world = World()
    await world.cluster_state.turn()
    await world.generations.turn()
    assert await world.shown_to(ALICE) == await world.shown_to(ROOT) == [814]
    assert await world.shown_to(BOB) == await world.shown_to(ALICE, "other") == []


async def test_those_of_one_tenant_are_shown_to_its_users_and_operators():
    world = World()
    both = Principal(61003, "carol", frozenset({"vision", "nlp"}))
    for array, tenant in ((800, "vision"), (801, "nlp")):
        world.ledger.record([a_generation(array, tenant=tenant, name="bert")])
    assert await world.shown_to(both) == await world.shown_to(ROOT) == [801, 800]
    for user in (ALICE, both, ROOT):
        assert await world.shown_to(user, tenant="vision") == [800]
    with pytest.raises(InvalidInputError, match="SW-TENANT-UNKNOWN"):
        await world.shown_to(BOB, tenant="vision")
