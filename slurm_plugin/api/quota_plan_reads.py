"""Plans a file of quotas on what the daemon has seen last, and changes nothing."""

from slicewise.cluster.settings.file import Settings
from slicewise.slurm_plugin.common.explain_requests import QuotaPlanAnswer
from slicewise.slurm_plugin.ledger.store import Ledger
from slicewise.slurm_plugin.ledger.summaries import held_lately, ledger_view_now
from slicewise.slurm_plugin.rules.accounting.ledger_view import LedgerView
from slicewise.slurm_plugin.rules.explain.planned_change import PlannedChange, planned_change
from slicewise.slurm_plugin.rules.quota.accounts import Accounts
from slicewise.slurm_plugin.rules.quota.quota_file import quota_updates
from slicewise.slurm_plugin.rules.round.world import SlurmView, World, world_of
from slicewise.slurm_plugin.state.cluster_state import ClusterState

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
    inputs = world_now(ledger_view, ledger, settings, cluster_state)
    change = planned_now(_FILE, text, accounts, inputs, settings)
    return QuotaPlanAnswer(change=change.report(settings.cluster.name).cut(_MOST))


def world_now(
    ledger_view: LedgerView, ledger: Ledger, settings: Settings, cluster_state: ClusterState
) -> World:
    """Return the ledger beside what the daemon has seen of Slurm last."""
    seen = SlurmView(
        cluster_state.jobs,
        cluster_state.nodes,
        cluster_state.view.services,
        lately=held_lately(ledger, settings, ledger_view.now_s),
    )
    return world_of(ledger_view, settings, seen)


def planned_now(
    file: str, text: str, accounts: Accounts, inputs: World, settings: Settings
) -> PlannedChange:
    """Return what the file of that name and text would do; raises as ``plan_of_file``."""
    updates, faults = quota_updates(file, text, inputs.ledger_view.tenants, settings)
    return planned_change(updates, faults, accounts, inputs, settings.ledger.time_zone)
