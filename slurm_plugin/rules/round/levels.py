"""Levels of quota in the tree of tenants, and whether all limits allow another one."""

from collections import Counter
from collections.abc import Iterator, Mapping

from slicewise.slurm_plugin.rules.quota.tenants import downward, parent, upward
from slicewise.slurm_plugin.rules.quota.types import Policy


class LevelTree:
    """Levels of quota by account, and what subtrees lend out and borrow at these levels.

    A level is changed along the account's way up: building the tree anew takes a thousand times as
    long where there are a thousand tenants.

    Attributes:
        levels: millislices that each account may have.
    """

    def __init__(self, policy: Policy, own: Mapping[str, int], levels: Mapping[str, int]) -> None:
        self._policy, self._own, self._above = policy, own, upward(policy)
        self.levels = dict(levels)
        # Sums over a tenant's own account and the subtrees directly below it; "" is the root.
        self._supply: Counter[str] = Counter()
        self._want: Counter[str] = Counter()
        for name in reversed(downward(policy)):
            self._supply[name] += max(0, own[name] - levels[name])
            self._want[name] += max(0, levels[name] - own[name])
            out, into = self._passing(name, self._supply[name], self._want[name])
            self._supply[parent(policy, name)] += out
            self._want[parent(policy, name)] += into

    def borrowed(self, name: str, *, is_account: bool) -> int:
        """Millislices that the account, or the subtree, has from others."""
        if is_account:
            return max(0, self.levels[name] - self._own[name])
        return max(0, self._want[name] - self._supply[name])

    def may_raise(self, name: str, level: int) -> bool:
        """Whether the account may have ``level`` within all limits."""
        if level <= self.levels[name]:
            return True
        return all(
            want - supply <= self._limit(node) for node, supply, want in self._changed(name, level)
        )

    def raise_to(self, name: str, level: int) -> None:
        """Raise the account to ``level`` if ``may_raise`` allows it; else change nothing."""
        if level > self.levels[name] and self.may_raise(name, level):
            self._set(name, level)

    def may_exchange(self, lower: Mapping[str, int], name: str, level: int) -> bool:
        """Whether the account may have ``level`` once others have these ``lower`` ones."""
        before = {account: self.levels[account] for account in (*lower, name)}
        may = self.exchange(lower, name, level)
        self._set_all(before)
        return may

    def exchange(self, lower: Mapping[str, int], name: str, level: int) -> bool:
        """Lower accounts and raise another one, if limits allow it; else change nothing."""
        before = {account: self.levels[account] for account in lower}
        self._set_all(lower)
        may = self.may_raise(name, level)
        if may:
            self.raise_to(name, level)
        else:
            self._set_all(before)
        return may

    def _set_all(self, levels: Mapping[str, int]) -> None:
        for account, level in levels.items():
            self._set(account, level)

    def _set(self, name: str, level: int) -> None:
        for node, supply, want in tuple(self._changed(name, level)):
            self._supply[node], self._want[node] = supply, want
        self.levels[name] = level

    def _changed(self, name: str, level: int) -> Iterator[tuple[str, int, int]]:
        """Each tenant on the way up, with its supply and want once the account has ``level``."""
        before, own = self.levels[name], self._own[name]
        more_supply = max(0, own - level) - max(0, own - before)
        more_want = max(0, level - own) - max(0, before - own)
        for node in self._above[name]:
            supply, want = self._supply[node], self._want[node]
            out, into = self._passing(node, supply, want)
            supply, want = supply + more_supply, want + more_want
            yield node, supply, want
            out_now, into_now = self._passing(node, supply, want)
            more_supply, more_want = out_now - out, into_now - into
        yield "", self._supply[""] + more_supply, self._want[""] + more_want

    def _limit(self, node: str) -> int:
        """The most that a subtree borrows; the root borrows nothing."""
        return self._policy[node].quota.borrowing_limit_millislices if node else 0

    def _passing(self, name: str, supply: int, want: int) -> tuple[int, int]:
        """Millislices that leave a subtree on loan, and that it needs from outside."""
        limit = self._policy[name].quota.lending_limit_millislices
        return min(limit, max(0, supply - want)), max(0, want - supply)
