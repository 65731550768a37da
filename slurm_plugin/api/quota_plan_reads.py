"""Plans a file of quotas on what the daemon has seen last, and changes nothing."""

from slicewise.cluster.settings.file import Settings
from slicewise.slurm_plugin.common.explain_requests import QuotaPlanAnswer
from slicewise.slurm_plugin.ledger.store import Ledger
from slicewise.slurm_plugin.ledger.summaries import held_lately, ledger_view_now
from slicewise.slurm_plugin.rules.explain.planned_change import PlannedChange, planned_change
from slicewise.slurm_plugin.rules.quota.accounts import Accounts
from slicewise.slurm_plugin.rules.quota.quota_file import quota_updates
from slicewise.slurm_plugin.rules.round.world import SlurmView, world_of
from slicewise.slurm_plugin.state.controller import ClusterState

_FILE = "The file of quotas"
_MOST = 1000
"""Most tenants, loans and harms of an answer, of each."""


def plan_of_file(
    text: str,
    accounts: Accounts,
    ledger: Ledger,
    settings: Settings,
    cluster_state: ClusterState,
) -> QuotaPlanAnswer:
    """Return what the file of that text would do; ``accounts`` are those of Slurm now.

    Raises InvalidInputError (SW-INPUT-FILE) with the lines of all tables that are refused.
    """
    ledger_view = ledger_view_now(ledger, settings, cluster_state.clock.shown_s)
    updates, faults = quota_updates(_FILE, text, ledger_view.tenants, settings)
    seen = SlurmView(
        cluster_state.jobs,
        cluster_state.nodes,
        cluster_state.view.services,
        lately=held_lately(ledger, settings, ledger_view.now_s),
    )
    inputs = world_of(ledger_view, settings, seen)
    change = planned_change(updates, faults, accounts, inputs, settings.ledger.time_zone)
    return _answer(change, settings.cluster.name)


def _answer(change: PlannedChange, cluster: str) -> QuotaPlanAnswer:
    shown, loans, harms = change.changed_tenants, change.plan.loans, change.impacts
    return QuotaPlanAnswer(
        changes=tuple(change.words),
        tenants=tuple(shown[:_MOST]),
        unchanged=len(change.plan.tenants) - len(shown),
        loans=loans[:_MOST],
        harms=harms[:_MOST],
        left_out=sum(len(one[_MOST:]) for one in (shown, loans, harms)),
        hidden=tuple(change.hidden),
        ended_windows=change.ended_windows,
        warnings=tuple(change.place_warnings(cluster)),
        needs_overcommit=change.needs_overcommit,
    )
