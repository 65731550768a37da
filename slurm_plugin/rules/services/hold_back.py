"""Finds borrowers that must not start new replicas for now.

Slices freed by a replica that was told to go are kept for the lender that takes them back.
"""

from collections.abc import Collection, Iterable, Mapping

from slicewise.slurm_plugin.rules.quota.demand import for_recalls
from slicewise.slurm_plugin.rules.quota.jobs import JobsByHolder
from slicewise.slurm_plugin.rules.quota.tenants import guaranteed_quota
from slicewise.slurm_plugin.rules.quota.types import Policy, Recall

Lenders = Mapping[str, frozenset[str]]
"""By borrower with slots that must wait: the lenders for which its replicas went."""


def still_waiting(
    before: Lenders, going: Collection[str], recalls: Iterable[Recall], starting: Collection[str]
) -> Lenders:
    """Borrowers with slots that must go on waiting.

    A borrower waits while replicas of its own are still ``going``, or a lender for which they went
    still takes something back (``recalls``) or is about to start a job (``starting``). A replica
    may go for any lender that takes back quota at that time, whichever tenant borrowed from it.
    """
    back = frozenset(recall.lender for recall in recalls)
    now = {
        borrower: lenders | back if borrower in going else lenders
        for borrower, lenders in before.items()
    }
    return {
        borrower: lenders
        for borrower, lenders in now.items()
        if borrower in going or not lenders.isdisjoint(back | frozenset(starting))
    }


def about_to_start(policy: Policy, by_holder: JobsByHolder) -> frozenset[str]:
    """Tenants with a job that waits for their own quota and fits into what is left of that."""
    own = guaranteed_quota(policy)
    return frozenset(
        tenant
        for tenant, jobs in for_recalls(by_holder).items()
        if any(
            job.cost_millislices <= own.get(tenant, 0) - by_holder.in_own(tenant) for job in jobs
        )
    )
