"""The demo's cast and timing, in one place."""

from dataclasses import dataclass

from sandbox.demo.trace import BUCKETS


@dataclass(frozen=True)
class TenantPlan:
    """A tenant, its user, its service, its quota and its share of the trace.

    Attributes:
        nominal: quota in slices, as text for the command.
        buckets: which rows of the trace its service gets.
    """

    tenant: str
    user: str
    service_name: str
    profile: str
    nominal: str
    max_replicas: int
    buckets: frozenset[int]

    @property
    def service(self) -> str:
        """``TENANT/NAME``, as in the service's address."""
        return f"{self.tenant}/{self.service_name}"


VISION = TenantPlan("vision", "alice", "captions", "1g.10gb", "7", 8, frozenset({0, 1, 3}))
NLP = TenantPlan("nlp", "bob", "chat", "1g.18gb", "2", 6, frozenset({2}))
GUEST = TenantPlan("guest", "carol", "trial", "1g.10gb", "0", 1, frozenset())
"""A tenant without quota: its service is refused, with the reason."""

SERVING = (VISION, NLP)
COMPRESSION = 24.0
"""The replay runs this many times faster than the trace was recorded."""

WAKE_TOKENS = (1020, 129)
"""Context and generated tokens of a wake request: the medians of the trace."""

REQUEST_TIMEOUT_S = 60.0
SAMPLE_INTERVAL_S = 0.5
RECENT_S = 5.0
"""Latencies shown live are of requests that ended within this time."""

SERVED_TIMEOUT_S = 120.0
"""How long the gateway may take to know a service that was applied."""
QUIET_TIMEOUT_S = 180.0
"""How long the services may take to give every replica back after the last answer."""
SETTLE_TIMEOUT_S = 60.0
"""How long ledger and accounting may take to see the end of the last replica."""


def rules() -> dict[str, str]:
    """Say for the report how the load is made; there is no seed."""
    shares = "; ".join(f"{plan.service} {sorted(plan.buckets)}" for plan in SERVING)
    return {
        "trace": "Azure LLM inference 2023, conversation; sandbox/demo/data/ATTRIBUTION.md",
        "rules": f"times / {COMPRESSION:g}; row numbers hashed into {BUCKETS} buckets: {shares}",
        "seed": "none: nothing is random",
    }
