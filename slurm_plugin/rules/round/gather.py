"""Joins ledger, Slurm and settings into the one value on which quotas are decided."""

from dataclasses import replace

from slicewise.cluster.settings.file import Settings
from slicewise.slurm_plugin.rules.accounting.ledger_view import LedgerView
from slicewise.slurm_plugin.rules.round.inputs import QuotaInputs, QuotaRules, SlurmView
from slicewise.slurm_plugin.rules.round.whole_jobs import TURN_S


def inputs_of(ledger_view: LedgerView, settings: Settings, seen: SlurmView) -> QuotaInputs:
    """Build the world; past holdings count only where ``lending.past_use`` is set."""
    seen = seen if settings.lending.past_use else replace(seen, lately={})
    return QuotaInputs(ledger_view, seen, rules_of(settings))


def rules_of(settings: Settings) -> QuotaRules:
    """The settings of slicewise.toml that decisions about quotas use."""
    return QuotaRules(
        partitions=frozenset(settings.cluster.partitions),
        costs=settings.costs,
        whole_boards=settings.whole_boards,
        models=settings.models,
        grace_s=settings.lending.grace_s,
        term_s=settings.lending.term_s,
        turn_s=TURN_S,
    )
