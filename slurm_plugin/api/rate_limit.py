"""Limits how often users and tenants change orders and keys: each change adds a lasting row."""

import math
import time
from collections.abc import Mapping

from slicewise.cluster.language.codes import Code
from slicewise.cluster.language.errors import InvalidInputError
from slicewise.slurm_plugin.api.access import Principal
from slicewise.slurm_plugin.rules.services.rate_limit import (
    RateLimit,
    RateUse,
    after_change,
    wait_s,
)

OF_USER = RateLimit(at_once=60, every_s=60.0)
OF_TENANT = RateLimit(at_once=240, every_s=15.0)
"""As much as four users may, so that one user does not use up the tenant's allowance."""
OF_PAGE = RateLimit(at_once=240, every_s=1.0)
"""Of all visitors of the page together: so much can a web server do that was taken over."""
OF_VISITOR = RateLimit(at_once=40, every_s=10.0)
"""Of one of them: few can't keep the others from ending a leaked key, or guests from logging in."""


class RateLimiter:
    """Allowances used since the daemon began; operators' changes don't count."""

    def __init__(self) -> None:
        self._used: dict[tuple[RateLimit, int | str], RateUse] = {}

    def take(self, principal: Principal, tenant: str) -> None:
        """Count one change. Raises InvalidInputError (SW-RATE) if it comes too early."""
        if principal.tenants is not None:
            who = principal.who
            self._take({(OF_USER, who): "You have", (OF_TENANT, tenant): f"{tenant} has"})

    def take_of_page(self, who: int | str) -> None:
        """Count one change by a visitor of the page; raises as ``take`` does."""
        self._take({(OF_PAGE, ""): "The page's visitors have", (OF_VISITOR, who): "You have"})

    def _take(self, whose: Mapping[tuple[RateLimit, int | str], str]) -> None:
        now_s = time.monotonic()
        known = {key: self._used.get(key, RateUse()) for key in whose}
        for (rate, who), used in known.items():
            if wait := wait_s(used, rate, now_s):
                raise InvalidInputError(
                    Code.RATE,
                    f"{whose[rate, who]} changed services and keys {rate.at_once} times in a row.",
                    f"Once in {rate.every_s:g} s is allowed: try again in {math.ceil(wait)} s.",
                )
        self._used |= {
            (rate, who): after_change(used, rate, now_s) for (rate, who), used in known.items()
        }
