"""Sums up what days of observing have shown: what would be refused, moved, lent and used."""

import re
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from slicewise.cluster.language.codes import Code, known
from slicewise.cluster.language.units import counted
from slicewise.slurm_plugin.rules.common.observations import Observations, Submissions
from slicewise.slurm_plugin.rules.quota.types import Policy

_NO_QUOTA = Code.QUOTA_NONE
_MOST_HINTS = 4
_HOUR = 3_600_000
"""Millislice-seconds of a slice-hour."""

_MENDS: Mapping[str, str] = {
    Code.BUDGET_EXCEEDED: "shorter time limits, or slicewise budget set TENANT --amount N",
    Code.CLASS_FORBIDDEN: "class=normal, or the tenant in [priority] high_class_for",
    Code.GRES: "a type in --gres; or [admission] untyped, [shared] in slicewise.toml",
    Code.PROFILE_UNKNOWN: "a type that nodes have: slicewise mig profiles",
    Code.QOS: "no --qos, or [qos] in slicewise.toml for the site's own",
    Code.QUOTA_BORROW: "slicewise tenant-quota set TENANT --borrowing-limit N",
    Code.QUOTA_EXCEEDED: "smaller tasks, or slicewise tenant-quota set TENANT --nominal N",
    Code.TENANT_UNKNOWN: "--account of one's own; slicewise tenant check",
}
"""What mends the refusals that a new site sees most, in fewer words than the code's own."""
_LINK = re.compile(r"\[([^]]*)\]\([^)]*\)")
"""A link of Markdown, of which a terminal shows the words."""


@dataclass(frozen=True)
class ObservedRefusal:
    """Submissions of one user that were refused for one reason, or would be."""

    code: str
    tenant: str
    user: str
    submissions: int


@dataclass(frozen=True)
class ObservedType:
    """Submissions for GPUs of one type.

    Attributes:
        gpu_type: types joined by "+"; "" where none was named.
        chosen: for how many the type was, or would be, chosen.
        asked_millislices: the cost of one task of each that was, or would be, admitted.
    """

    gpu_type: str
    submissions: int
    refused: int
    chosen: int
    asked_millislices: int


@dataclass(frozen=True)
class ObservedLoan:
    """What one tenant would have lent to another."""

    lender: str
    borrower: str
    lent_millislice_s: int
    recalls: int
    recalled_millislices: int


@dataclass(frozen=True)
class ObservedTenant:
    """A tenant, or an account without quota whose users submitted jobs.

    Attributes:
        moved_qos: how many submissions named another QOS than they get.
        on_borrowed: how many get the QOS for borrowed quota.
        used_millislice_s: what its runs used, by the books.
        guaranteed_millislice_s: its guaranteed quota while the daemon looked.
    """

    tenant: str
    has_quota: bool
    submissions: int
    refused: int
    moved_qos: int
    moved_type: int
    on_borrowed: int
    used_millislice_s: int
    guaranteed_millislice_s: int
    wanted_beyond_millislice_s: int
    lent_millislice_s: int
    borrowed_millislice_s: int
    recalled_millislices: int


@dataclass(frozen=True)
class ObservedReport:
    """What was recorded since ``since_s``, the Unix second at which a day began (UTC).

    Attributes:
        days: number of days of which anything was recorded.
        modes: number of submissions by the mode in which the daemon decided.
        idle_wanted_millislice_s: idle quota that jobs of other tenants wanted.
        lent_share: the part of it that would have been lent; None if none was wanted.
        hints: what to do next, in words.
    """

    since_s: int
    days: int
    modes: Mapping[str, int]
    tenants: tuple[ObservedTenant, ...]
    refusals: tuple[ObservedRefusal, ...]
    types: tuple[ObservedType, ...]
    loans: tuple[ObservedLoan, ...]
    idle_wanted_millislice_s: int
    lent_share: float | None
    hints: tuple[str, ...]


def first_day_s(observations: Observations) -> int | None:
    """Return the Unix second at which the first recorded day began; None if there is none."""
    return min(_days(observations), default=None)


def observed_report(
    observations: Observations, used_millislice_s: Mapping[str, int], policy: Policy, since_s: int
) -> ObservedReport:
    """Sum up what was recorded; ``used_millislice_s`` is what runs used, by tenant."""
    modes: Counter[str] = Counter()
    for submission in observations.submissions:
        modes[submission.mode] += submission.submissions
    wanted = sum(use.idle_wanted_millislice_s for use in observations.quota)
    loans = tuple(_loans(observations))
    lent = sum(loan.lent_millislice_s for loan in loans)
    refusals = tuple(_refusals(observations.submissions))
    tenants = tuple(_tenants(observations, used_millislice_s, policy))
    return ObservedReport(
        since_s=since_s,
        days=len(_days(observations)),
        modes=dict(sorted(modes.items())),
        tenants=tenants,
        refusals=refusals,
        types=tuple(_types(observations.submissions)),
        loans=loans,
        idle_wanted_millislice_s=wanted,
        lent_share=min(1.0, lent / wanted) if wanted else None,
        hints=tuple(_hints(refusals, tenants, wanted=wanted, lent=lent)),
    )


def tenant_words(tenant: ObservedTenant) -> str:
    """Say in one sentence what observing has shown of a tenant."""
    many = counted(tenant.submissions, "submission")
    jobs = f"{many}, {tenant.refused} refused, {tenant.moved_qos} moved to another QOS"
    used = f"used {_hours(tenant.used_millislice_s)}"
    if not tenant.has_quota:
        return f"{tenant.tenant} has no quota: {jobs}; {used} slice-hours."
    share = ""
    if tenant.guaranteed_millislice_s:
        share = f" ({tenant.used_millislice_s / tenant.guaranteed_millislice_s:.0%})"
    return (
        f"{tenant.tenant}: {jobs}, {tenant.on_borrowed} on borrowed quota;"
        f" {used} of {_hours(tenant.guaranteed_millislice_s)} guaranteed slice-hours{share},"
        f" lends {_hours(tenant.lent_millislice_s)},"
        f" borrows {_hours(tenant.borrowed_millislice_s)}."
    )


def _days(observations: Observations) -> frozenset[int]:
    return frozenset(
        record.day_s
        for part in (observations.submissions, observations.loans, observations.quota)
        for record in part
    )


def _refusals(submissions: tuple[Submissions, ...]) -> Iterator[ObservedRefusal]:
    count: Counter[tuple[str, str, str]] = Counter()
    for submission in submissions:
        if submission.code:
            count[submission.code, submission.tenant, submission.user] += submission.submissions
    for key, many in sorted(count.items(), key=lambda item: (-item[1], item[0])):
        yield ObservedRefusal(*key, many)


def _types(submissions: tuple[Submissions, ...]) -> Iterator[ObservedType]:
    for name in sorted({submission.gpu_type for submission in submissions}):
        ours = [submission for submission in submissions if submission.gpu_type == name]
        yield ObservedType(
            name,
            submissions=sum(submission.submissions for submission in ours),
            refused=sum(submission.submissions for submission in ours if submission.code),
            chosen=sum(submission.moved_type for submission in ours),
            asked_millislices=sum(submission.asked_millislices for submission in ours),
        )


def _loans(observations: Observations) -> Iterator[ObservedLoan]:
    for lender, borrower in sorted({(loan.lender, loan.borrower) for loan in observations.loans}):
        ours = [
            loan
            for loan in observations.loans
            if (loan.lender, loan.borrower) == (lender, borrower)
        ]
        yield ObservedLoan(
            *(lender, borrower),
            lent_millislice_s=sum(between.lent_millislice_s for between in ours),
            recalls=sum(between.recalls for between in ours),
            recalled_millislices=sum(between.recalled_millislices for between in ours),
        )


def _tenants(
    observations: Observations, used: Mapping[str, int], policy: Policy
) -> Iterator[ObservedTenant]:
    seen = {submission.tenant for submission in observations.submissions} | {
        use.tenant for use in observations.quota
    }
    for name in sorted(seen | used.keys() | policy.keys()):
        ours = [submission for submission in observations.submissions if submission.tenant == name]
        quota = [use for use in observations.quota if use.tenant == name]
        lent = [loan for loan in observations.loans if loan.lender == name]
        borrowed = [loan for loan in observations.loans if loan.borrower == name]
        yield ObservedTenant(
            name,
            has_quota=name in policy,
            submissions=sum(submission.submissions for submission in ours),
            refused=sum(submission.submissions for submission in ours if submission.code),
            moved_qos=sum(submission.moved_qos for submission in ours),
            moved_type=sum(submission.moved_type for submission in ours),
            on_borrowed=sum(
                submission.submissions for submission in ours if submission.is_borrowed
            ),
            used_millislice_s=used.get(name, 0),
            guaranteed_millislice_s=sum(use.guaranteed_millislice_s for use in quota),
            wanted_beyond_millislice_s=sum(use.wanted_millislice_s for use in quota),
            lent_millislice_s=sum(between.lent_millislice_s for between in lent),
            borrowed_millislice_s=sum(between.lent_millislice_s for between in borrowed),
            recalled_millislices=sum(between.recalled_millislices for between in borrowed),
        )


def _hints(
    refusals: tuple[ObservedRefusal, ...],
    tenants: tuple[ObservedTenant, ...],
    *,
    wanted: int,
    lent: int,
) -> Iterator[str]:
    if not any(tenant.submissions for tenant in tenants):
        yield (
            "No submission for GPUs was recorded. Whether slicewise.lua asks:"
            " slicewise admission status"
        )
    without = Counter[str]()
    codes = Counter[str]()
    for refusal in refusals:
        if refusal.code == _NO_QUOTA:
            without[refusal.tenant] += refusal.submissions
        else:
            codes[refusal.code] += refusal.submissions
    for name, many in without.most_common(_MOST_HINTS):
        yield f"{name} has no quota ({many} refused): slicewise tenant-quota set {name} --nominal N"
    if (left := len(without) - _MOST_HINTS) > 0:
        yield f"{left} more accounts have no quota: slicewise tenant import --dry-run"
    for code, many in codes.most_common(_MOST_HINTS):
        mend = _MENDS.get(code) or _LINK.sub(r"\1", known(code).remedy)
        yield f"{code} ({many} refused): {mend}"
    if wanted and not lent:
        yield (
            f"{_hours(wanted)} idle slice-hours were wanted by others and nothing is lent:"
            " slicewise tenant-quota set TENANT --borrowing-limit N, --lending-limit N"
        )


def _hours(millislice_s: int) -> str:
    return f"{millislice_s / _HOUR:.1f}"
