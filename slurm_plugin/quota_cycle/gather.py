"""Joins ledger, Slurm and settings into the one value on which quotas are decided."""

from dataclasses import replace

from cluster.settings.file import Settings
from slurm_plugin.accounting.ledger_view import Books
from slurm_plugin.quota_cycle.world import Rules, Seen, World


def world_of(books: Books, settings: Settings, seen: Seen) -> World:
    """Build the world; past holdings count only where ``lending.past_use`` is set."""
    seen = seen if settings.lending.past_use else replace(seen, lately={})
    return World(books, seen, rules_of(settings))


def rules_of(settings: Settings) -> Rules:
    """The settings of slicewise.toml that decisions about quotas use."""
    return Rules(
        partitions=frozenset(settings.cluster.partitions),
        costs=settings.costs,
        whole_boards=settings.whole_boards,
        models=settings.models,
        grace_s=settings.lending.grace_s,
        term_s=settings.lending.term_s,
        turn_s=settings.lending.turn_s,
    )
