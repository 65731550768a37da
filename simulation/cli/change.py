"""Lays a file of quotas over a site's policy, as ``slicewise tenant-quota apply`` does."""

from dataclasses import replace
from pathlib import Path

from slicewise.simulation.cli.inputs import SiteInputs
from slicewise.simulation.rules.slurm_model.model import SlurmModel
from slicewise.slurm_plugin.cli.common.quota_file import read_quota_file
from slicewise.slurm_plugin.rules.explain.planned_change import PlannedChange, planned_change
from slicewise.slurm_plugin.rules.quota.calendar_times import moment
from slicewise.slurm_plugin.rules.round.world import SlurmView, world_of


def planned(file: Path, site: SiteInputs, at_s: float) -> PlannedChange:
    """Return what the file changes of the site's policy, on an empty cluster at that moment.

    Raises InvalidInputError (SW-INPUT-FILE) for a file that is refused.
    """
    settings, zone = site.settings, site.zone
    updates, faults = read_quota_file(file, site.tenants, settings)
    # A budget's balance, loans and recalls are those of another moment.
    ledger_view = replace(
        site.now.ledger,
        when=moment(at_s, zone),
        loans=(),
        recalls=(),
        balances={},
        rollovers={},
        reservations=(),
        known={},
    )
    nodes = SlurmModel(site.cluster, start_s=at_s, costs=settings.costs).nodes
    inputs = world_of(ledger_view, settings, SlurmView((), nodes, ()))
    return planned_change(updates, faults, site.cluster.accounts, inputs, zone)
