"""Levels in a tree of tenants: what is changed step by step is what a new tree would say."""

import random

from slicewise.cluster.language.units import Millislices
from slicewise.slurm_plugin.rules.quota.tenants import guaranteed_quota
from slicewise.slurm_plugin.rules.quota.types import Policy, Quota, Tenant
from slicewise.slurm_plugin.rules.round.levels import LevelTree


def tenant(name: str, parent: str, nominal: int, borrows: int, lends: int) -> Tenant:
    amounts = map(Millislices, (nominal, borrows, lends))
    return Tenant(name, parent, Quota(*amounts))


POLICY: Policy = {
    one.name: one
    for one in (
        tenant("division", "", 12_000, 4000, 3000),
        tenant("a", "division", 5000, 6000, 2000),
        tenant("b", "division", 4000, 3000, 4000),
        tenant("c", "", 6000, 8000, 5000),
    )
}
OWN = guaranteed_quota(POLICY)


def figures(tree: LevelTree) -> list[tuple[str, int, int, int, bool]]:
    return [
        (
            name,
            tree.levels[name],
            tree.borrowed(name, is_account=True),
            tree.borrowed(name, is_account=False),
            tree.may_raise(name, tree.levels[name] + 1500),
        )
        for name in POLICY
    ]


def test_a_tree_changed_step_by_step_is_that_of_its_levels():
    tree = LevelTree(POLICY, OWN, dict.fromkeys(POLICY, 0))
    chance = random.Random(1)  # noqa: S311 -- no secret
    done = 0
    for _ in range(300):
        name, *others = chance.sample(sorted(POLICY), k=chance.randint(1, 4))
        lower = {one: chance.randint(0, tree.levels[one]) for one in others}
        level, before = chance.randrange(0, 15_000, 500), figures(tree)
        may = tree.may_exchange(lower, name, level)
        assert figures(tree) == before
        assert tree.exchange(lower, name, level) == may
        assert may or figures(tree) == before
        assert figures(tree) == figures(LevelTree(POLICY, OWN, tree.levels))
        done += may
    assert 20 < done < 280
