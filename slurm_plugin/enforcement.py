"""The loop from the ledger to Slurm: lends what lies idle, compiles limits; nobody waits for it."""

import asyncio
import pwd
import time
from collections.abc import Iterable, Mapping, Sequence

from cluster.errors import OutsideError, UnreachableError
from cluster.leadership import ALONE, Leader
from cluster.settings import Settings
from cluster.slurm.interface import Association, Slurm
from cluster.units import slices_text
from slurm_plugin.compile import Compiled, compile_limits
from slurm_plugin.decide.demand import capacity, demand
from slurm_plugin.decide.lending import lend
from slurm_plugin.decide.policy import Loan, Policy
from slurm_plugin.decide.reclaim import short_lenders
from slurm_plugin.ledger.store import Ledger
from slurm_plugin.observe import report, report_failure, warn
from slurm_plugin.sync import Sync

_RECOMPILE_S = 15.0
"""How often limits are looked at and idle quota is lent though nothing changed in the ledger:
others change limits, jobs come and go, budgets are used up."""


class Enforcement:
    """Keeps Slurm's limits, and admission, as the ledger says."""

    def __init__(
        self,
        settings: Settings,
        slurm: Slurm,
        ledger: Ledger,
        sync: Sync,
        leader: Leader = ALONE,
    ) -> None:
        self._settings = settings
        self._leader = leader
        self._led = False
        self._slurm = slurm
        self._ledger = ledger
        self._sync = sync
        self._policy: Policy = {}
        self._loans: Sequence[Loan] = ()
        self._granted: Mapping[str, int] = {}
        self._compiled_change = -1
        self._compile_due_s = 0.0
        self._warned: frozenset[str] = frozenset()

    async def start(self) -> None:
        """Compile; if Slurm does not let it, begin on the limits that it has.

        Slurm does the counting, so admission need not wait for it. The turns try on.
        """
        try:
            await self.compile()
        except (UnreachableError, OutsideError) as error:
            policy = await asyncio.to_thread(self._ledger.policy)
            report_failure("start_limits_failed", error)
            await self._publish(policy, await self._associations_or_none())

    async def turn(self) -> None:
        """Compile if the ledger changed, a lender needs its own again, or it is time to look.

        What Slurm refuses of one tenant does not keep the others' changes from admission.
        """
        if await self._is_due():
            try:
                await self.compile()
            except OutsideError:
                policy = await asyncio.to_thread(self._ledger.policy)
                await self._publish(policy, await self._slurm.associations())
                raise

    async def compile(self) -> None:
        """Lend, bring Slurm's limits to the ledger's, and admission with them."""
        change_id = await asyncio.to_thread(self._ledger.change_id)
        policy = await asyncio.to_thread(self._ledger.policy)
        granted = await self._grants(policy)
        self._led = self._leader.leads()
        if self._compiles:
            await self._lend(policy)
            compiled = await compile_limits(self._slurm, self._ledger, self._settings)
            self._report(compiled)
            now = compiled.ceilings.items()
            ceilings = {name: one.ceiling_millislices for name, one in now}
            self._sync.set_ceilings(ceilings, compiled.run_minutes)
            await self._publish(compiled.policy, compiled.associations)
            # Last: who reads "in force" may submit at once.
            await asyncio.to_thread(self._ledger.mark_compiled, change_id)
        else:
            await self._publish(policy, await self._slurm.associations())
        self._policy, self._granted, self._compiled_change = policy, granted, change_id
        self._compile_due_s = time.monotonic() + _RECOMPILE_S

    async def _is_due(self) -> bool:
        return (
            time.monotonic() >= self._compile_due_s
            or self._leader.leads() != self._led
            or await asyncio.to_thread(self._ledger.change_id) != self._compiled_change
            or self._is_lender_short()
            or await self._grants(self._policy) != self._granted
        )

    def _is_lender_short(self) -> bool:
        lent = self._compiles and self._loans and self._sync.view.complete
        return bool(lent and short_lenders(self._policy, self._loans, self._demand(self._policy)))

    async def _grants(self, policy: Policy) -> Mapping[str, int]:
        """What each budget was given: a roll or a grant counts in Slurm at once."""
        if not any(tenant.budget for tenant in policy.values()):
            return {}
        balances = await asyncio.to_thread(self._ledger.balances)
        return {name: one.granted_millislice_s for name, one in balances.items() if name in policy}

    async def _lend(self, policy: Policy) -> None:
        """Loans as what is seen of Slurm now asks for them; none changes on half a look."""
        self._loans = await asyncio.to_thread(self._ledger.loans)
        borrow = any(tenant.quota.borrowing_limit_millislices for tenant in policy.values())
        if not borrow or not self._sync.view.complete:
            return
        whole = capacity(self._sync.nodes, self._partitions, self._settings.costs) or None
        loans = lend(policy, self._demand(policy), self._loans, whole)
        if set(loans) != set(self._loans):
            await asyncio.to_thread(self._ledger.set_loans, loans, "what lies idle, lent by demand")
            self._loans = await asyncio.to_thread(self._ledger.loans)
            lent = sum(loan.amount_millislices for loan in self._loans)
            report("lent", loans=len(self._loans), slices=slices_text(lent))

    def _demand(self, policy: Policy) -> Mapping[str, int]:
        return demand(policy, self._sync.jobs, self._partitions, self._settings.costs)

    @property
    def _compiles(self) -> bool:
        """Else the limits are another daemon's, or nobody's."""
        return self._settings.daemon.mode == "enforce" and self._led

    @property
    def _partitions(self) -> frozenset[str]:
        return frozenset(self._settings.cluster.partitions)

    def _report(self, compiled: Compiled) -> None:
        for change in compiled.changes:
            report("limit_set", sacctmgr=" ".join(change))
        for one in compiled.by_hand:
            key = one.key
            name = f"{key.entity} {key.name}"
            warn("limit_changed_by_hand", of=name, field=key.field, was=one.was, now=one.now)
        for text in compiled.warnings:
            if text not in self._warned:
                warn("limits_odd", text=text)
        self._warned = frozenset(compiled.warnings)

    async def _publish(self, policy: Policy, associations: Iterable[Association]) -> None:
        accounts = await asyncio.to_thread(_accounts_by_uid, associations)
        self._sync.set_policy(policy, accounts)

    async def _associations_or_none(self) -> tuple[Association, ...]:
        """None without slurmdbd: then who belongs where is left to Slurm."""
        try:
            return await self._slurm.associations()
        except (UnreachableError, OutsideError):
            return ()


def _accounts_by_uid(associations: Iterable[Association]) -> Mapping[int, frozenset[str]]:
    """Accounts of each user that this host knows; reads the user database."""
    accounts: dict[str, set[str]] = {}
    for association in associations:
        if association.user:
            accounts.setdefault(association.user, set()).add(association.account)
    found = ((_uid(user), frozenset(names)) for user, names in accounts.items())
    return {uid: names for uid, names in found if uid is not None}


def _uid(user: str) -> int | None:
    try:
        return pwd.getpwnam(user).pw_uid
    except KeyError:
        return None
