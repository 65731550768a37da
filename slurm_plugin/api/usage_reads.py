"""Who may see which sums of tokens, and the answer page by page."""

from slicewise.cluster.language.persons import is_guest
from slicewise.slurm_plugin.api.access import Principal
from slicewise.slurm_plugin.common.usage_requests import (
    LINE_FIELDS,
    TokenUsageAnswer,
    TokenUsageRequest,
)
from slicewise.slurm_plugin.ledger.store import Ledger
from slicewise.slurm_plugin.ledger.usage_reads import UsageReader

PAGE_LINES = 1000
"""Lines of one answer: some 200 KB."""


def token_usage(
    request: TokenUsageRequest, principal: Principal, ledger: Ledger, zone: str
) -> TokenUsageAnswer:
    """A page of what a user may see: own requests with their names; of others' requests to the
    services of the user's tenants their sums by tenant. Of no person another's.
    """
    # A guest's own requests are all that a guest sees of a tenant.
    owned = frozenset[str]() if is_guest(principal.user) else principal.tenants
    reader = UsageReader(principal.user, owned)
    lines = ledger.usage_reads.lines(request, reader, zone, PAGE_LINES + 1)
    of_one = request.tenant or request.person or request.key_id
    is_first = request.after is None and not of_one
    shown = lines[:PAGE_LINES]
    more = None
    if len(lines) > PAGE_LINES:
        more = tuple(getattr(shown[-1], name) for name in LINE_FIELDS[request.by])
    unattributed = ledger.usage_reads.unattributed(request, reader) if is_first else ()
    return TokenUsageAnswer(lines=shown, unattributed=unattributed, more=more)
