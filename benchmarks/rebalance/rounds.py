"""Measures one run of ``slicewise rebalance`` on a large site by step, and rounds of the daemon.

The run is the product's own, with a PostgreSQL ledger. Slurm's replies are values: the time that
its commands, slurmctld and slurmdbd take is not included.
"""

import asyncio
import gc
import os
import tempfile
import time
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any, cast

from sqlalchemy import insert

from benchmarks.rebalance import site
from benchmarks.rebalance.replies import CLUSTER, Replies
from benchmarks.rebalance.site import Site, Size
from benchmarks.server import server
from slicewise.cluster.language.codes import Code
from slicewise.cluster.language.errors import UnreachableError
from slicewise.cluster.language.rebalances import RebalanceRun, RunOutcome, StepName
from slicewise.cluster.language.slurm.interface import Slurm
from slicewise.cluster.runtime.database import postgres_engine, writing
from slicewise.cluster.settings.file import DaemonSettings, Settings
from slicewise.cluster.settings.read import load_settings
from slicewise.slurm_plugin.cli.commands.rebalance_run import GARBAGE_AFTER
from slicewise.slurm_plugin.daemon.quota_loop import QuotaLoop
from slicewise.slurm_plugin.ledger import schema_revisions
from slicewise.slurm_plugin.ledger.base import Database
from slicewise.slurm_plugin.ledger.policy_rows import change_values
from slicewise.slurm_plugin.ledger.rebalances import Rebalances
from slicewise.slurm_plugin.ledger.repartition_tables import mig_nodes
from slicewise.slurm_plugin.ledger.store import Ledger
from slicewise.slurm_plugin.ledger.summaries import ledger_view_now
from slicewise.slurm_plugin.ledger.tables import quota_changes
from slicewise.slurm_plugin.quota_cycle.lend import planned
from slicewise.slurm_plugin.rebalance.run import run
from slicewise.slurm_plugin.rebalance.site_look import RunContext
from slicewise.slurm_plugin.rules.admission.snapshot import Snapshot
from slicewise.slurm_plugin.rules.quota.types import Tenant, TenantUpdate
from slicewise.slurm_plugin.rules.round.world import SlurmView
from slicewise.slurm_plugin.state.cluster_state import ClusterState

_ETC = Path(__file__).resolve().parents[2] / "etc" / "slicewise.toml"
_DATABASE = "rebalance"
_DECISIONS, _UNTIL_QUIET = 3, 8


class _Clocked(Rebalances):
    """Notes when the steps of a run begin and end, by wall clock and by CPU time."""

    def __init__(self, database: Database) -> None:
        """As ``Rebalances``."""
        super().__init__(database)
        self.at_s: list[tuple[float, float]] = []

    def begin_step(self, run_id: int, step: StepName) -> int:
        """As ``Rebalances``."""
        self.at_s.append(_clocks())
        return super().begin_step(run_id, step)

    def end_step(self, *args: Any) -> None:
        """As ``Rebalances``."""
        super().end_step(*args)
        self.at_s.append(_clocks())


class _ClockedLedger(Ledger):
    """A ledger that times the steps of rebalancing runs."""

    def __init__(self, url: str, cluster: str) -> None:
        """As ``Ledger``."""
        super().__init__(url, cluster)
        self.rebalances: _Clocked = _Clocked(self._database)


def _clocks() -> tuple[float, float]:
    return time.perf_counter(), time.process_time()


class _NoDaemon:
    """A daemon that is not there, so that the run does all steps itself."""

    async def ask(self, _request: object) -> Any:
        """Raise UnreachableError (SW-DAEMON-DOWN)."""
        raise UnreachableError(Code.DAEMON_DOWN, "There is none.", "")


def measured(size: Size, seed: int) -> Mapping[str, Any]:
    """Measure one run, on one processor, after a first run that has made all limits and loans."""
    os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})
    with server() as running, tempfile.TemporaryDirectory(prefix="slicewise-bench-") as place:
        running.run("createdb", _DATABASE)
        url = running.url(_DATABASE)
        schema_revisions.upgrade(url)
        now_s = int(time.time())
        before = site.idle_lenders(size, seed, now_s)
        after = site.short_lenders(size, seed, now_s)
        _fill(url, before)
        with _ClockedLedger(url, CLUSTER) as ledger:
            return _measured(ledger, _settings(Path(place), before), before, after)


def _measured(
    ledger: _ClockedLedger, settings: Settings, before: Site, after: Site
) -> Mapping[str, Any]:
    slurm = Replies(before)
    place = RunContext(settings, slurm, ledger, _NoDaemon(), "bench", "bench", is_root=False)
    _done(asyncio.run(run(place, lambda: True)))
    slurm.show(after)
    # The replies stand for Slurm's: looking for garbage among them is no part of a run.
    gc.collect()
    gc.freeze()
    gc.set_threshold(GARBAGE_AFTER)
    ledger.rebalances.at_s = []
    began_s, began_cpu_s = _clocks()
    ended = asyncio.run(run(place, lambda: True))
    ended_s, ended_cpu_s = _clocks()
    _done(ended)
    names = [one.step.value for one in ended.steps]
    pairs = zip(ledger.rebalances.at_s[::2], ledger.rebalances.at_s[1::2], strict=True)
    took = {name: _apart(*pair) for name, pair in zip(names, pairs, strict=True)}
    by_round = asyncio.run(_rounds(ledger, settings, slurm, before, after))
    return {
        "calls": calls(by_round),
        "rounds": by_round,
        "seconds": round(ended_s - began_s, 3),
        "cpu_s": round(ended_cpu_s - began_cpu_s, 3),
        "look_s": _apart((began_s, began_cpu_s), ledger.rebalances.at_s[0])["seconds"],
        "steps": {
            one.step.value: {
                **took[one.step.value],
                "changed": len(one.did),
                "saw": {word: seen for word, seen in one.saw.items() if word != "planned"},
            }
            for one in ended.steps
        },
    }


class _Counted:
    """Stands for an object, and counts calls by name, also those of the object's attributes."""

    def __init__(self, of: Any, counts: Counter[str]) -> None:
        self._of, self._counts = of, counts

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._of, name)
        if not callable(found):
            return _Counted(found, self._counts)

        def counted(*args: Any, **named: Any) -> Any:
            self._counts[name] += 1
            return found(*args, **named)

        return counted


class _NoAdmission:
    """Takes snapshots and does nothing with them."""

    def publish(self, snapshot: Snapshot, observed_s: float) -> None:
        """As ``Admission.publish``."""


async def _rounds(
    ledger: Ledger, settings: Settings, slurm: Replies, before: Site, after: Site
) -> Mapping[str, Any]:
    """Measure a quiet round of the daemon, which changes nothing, and a busy one.

    Before the busy round lenders' jobs have come, and runs have ended and others begun.
    """
    of_ledger, of_slurm = Counter[str](), Counter[str]()
    cluster_state = ClusterState(settings, slurm, _NoAdmission())
    limits = QuotaLoop(
        settings,
        cast("Slurm", _Counted(slurm, of_slurm)),
        cast("Ledger", _Counted(ledger, of_ledger)),
        cluster_state,
    )

    async def measured() -> Mapping[str, Any]:
        decision_s = _decision_s(ledger, settings, cluster_state)
        of_ledger.clear()
        of_slurm.clear()
        began = _clocks()
        await limits.compile()
        return {
            "ledger": of_ledger.total(),
            "slurm": of_slurm.total(),
            "of": {"ledger": dict(of_ledger), "slurm": dict(of_slurm)},
            "decision_s": decision_s,
            **_apart(began, _clocks()),
        }

    slurm.show(before)
    await cluster_state.turn()
    for _ in range(_UNTIL_QUIET):
        quiet = await measured()
        if not of_slurm["set_limits"] and not of_ledger["replace"]:
            break
    slurm.show(after)
    await cluster_state.turn()
    return {"quiet": quiet, "busy": await measured()}


def _decision_s(ledger: Ledger, settings: Settings, cluster_state: ClusterState) -> float:
    """Seconds to decide the next round's loans, recalls and evictions: the least of a few tries."""
    ledger_view = ledger_view_now(ledger, settings)
    seen = SlurmView(cluster_state.jobs, cluster_state.nodes, cluster_state.view.services)
    took_s = []
    for _ in range(_DECISIONS):
        began_s = time.perf_counter()
        planned(ledger_view, settings, seen)
        took_s.append(time.perf_counter() - began_s)
    return round(min(took_s), 3)


def calls(found: Mapping[str, Any]) -> Mapping[str, Any]:
    """Calls to the ledger and to Slurm: those of the quiet round, and those of each round."""
    counts = {
        name: {to: one[to] for to in ("ledger", "slurm", "of")} for name, one in found.items()
    }
    return {to: found["quiet"][to] for to in ("ledger", "slurm")} | counts


def _apart(begin: tuple[float, float], end: tuple[float, float]) -> Mapping[str, float]:
    return {"seconds": round(end[0] - begin[0], 3), "cpu_s": round(end[1] - begin[1], 3)}


def _done(ended: RebalanceRun) -> None:
    if ended.outcome is not RunOutcome.DONE:
        raise AssertionError([one.why for one in ended.steps])


def _settings(place: Path, shown: Site) -> Settings:
    slurm_conf, gres_conf = site.files(shown.nodes)
    (place / "slurm.conf").write_text(slurm_conf, encoding="utf-8")
    (place / "gres.conf").write_text(gres_conf, encoding="utf-8")
    known = load_settings(_ETC)
    changes = {"slurm_conf": place / "slurm.conf"}
    return known.model_copy(
        update={
            "cluster": known.cluster.model_copy(update={"name": CLUSTER}),
            "daemon": DaemonSettings(mode="enforce"),
            "repartition": known.repartition.model_copy(update=changes),
        }
    )


def _fill(url: str, shown: Site) -> None:
    """Insert all tenants and surveys together: one by one takes a minute."""
    engine = postgres_engine(url)
    words = {"cluster": CLUSTER, "author": "bench", "reason": "bench"}
    rows = [change_values(_update(one)) for one in shown.policy.values()]
    fields = dict.fromkeys(name for row in rows for name in row)
    changes = [{**fields, **words, **row} for row in rows]
    surveys = [
        {"cluster": CLUSTER, "node": node, "inventory": inventory}
        for node, inventory in site.inventories(shown.nodes).items()
    ]
    with writing(engine) as connection:
        connection.execute(insert(quota_changes), changes)
        connection.execute(insert(mig_nodes), surveys)
    engine.dispose()


def _update(tenant: Tenant) -> TenantUpdate:
    return TenantUpdate(
        tenant.name, parent=tenant.parent, budget=tenant.budget, **vars(tenant.quota)
    )
