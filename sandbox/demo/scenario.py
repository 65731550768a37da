"""The demo's cast and timing, in one place."""

from dataclasses import dataclass

Schedule = tuple[tuple[float, float], ...]
"""Points of (seconds after the replay begins, share of the trace's rows), in order of time.

Between two points the share changes linearly; before the first and after the last it is theirs.
"""


@dataclass(frozen=True)
class TenantPlan:
    """A tenant, its user, its service, its quota and its part of the load.

    Attributes:
        nominal: quota in slices, as text for the command.
        schedule: the share of the trace's rows that its service gets, over time.
        concurrency: requests that one replica gets at a time.
        lends, borrows: how many slices it may lend to others, and hold of others', as text.
        weight: its share of what is idle, against others that want it.
    """

    tenant: str
    user: str
    service_name: str
    profile: str
    nominal: str
    max_replicas: int
    schedule: Schedule = ()
    concurrency: int = 1
    lends: str = "0"
    borrows: str = "0"
    weight: str = "10"
    engine: str = "triton"
    model: str = "tokens"

    @property
    def service(self) -> str:
        """``TENANT/NAME``, as in the service's address."""
        return f"{self.tenant}/{self.service_name}"


VISION = TenantPlan(
    "vision",
    "alice",
    "captions",
    "1g.10gb",
    "4",
    7,
    schedule=((0, 0.005), (20, 0.095), (31, 0.095), (43, 0)),
    lends="4",
    borrows="4",
)
NLP = TenantPlan(
    "nlp",
    "bob",
    "chat",
    "1g.10gb",
    "3",
    7,
    schedule=((37, 0), (40, 0.01), (58, 0.085), (70, 0.085), (80, 0)),
    lends="3",
    borrows="3",
)
GUEST = TenantPlan("guest", "carol", "trial", "1g.10gb", "0", 1)
"""A tenant without quota: its service is refused, with the reason. Later it gets a quota, runs
batch jobs, and serves chats."""
CHAT = TenantPlan(
    "guest",
    "carol",
    "talk",
    "1g.18gb",
    "8",
    1,
    concurrency=4,
    engine="llamacpp",
    model="talk",
)
"""The guest's language model, on a GPU that nothing else of the demo uses. The quota is for this
slice and for two of ``SHAPE``, each of which costs 3.5."""

FILLER = TenantPlan("research", "carol", "", "1g.10gb", "0", 0, borrows="7", weight="1")
"""A tenant without slices of its own, in which the guest's user works, too: its batch job runs on
what the others leave idle, and gives way to them: of that, too, its share is a tenth of theirs."""
FILLER_TASKS, FILLER_TASK_S = 16, 18
"""Its tasks, and the seconds that each works: more than is idle while there is load, so the job is
still there for the last wake. A lender ends tasks at once, and they run again after the others."""
FULL_S = 30.0
"""How long it may take until that job has all slices that both services leave when they rest."""
GIVES_WAY_S = 3.0
"""How long each of its tasks has to work then, at least: more than it takes until one gives way."""

SERVING = (VISION, NLP)
"""At the height of its load each has requests for four to five replicas at a time, which is more
than its own quota and three quarters of what it can get: so requests wait for a replica only where
one must start first."""
COMPRESSION = 24.0
"""The replay runs this many times faster than the trace was recorded."""

LENDER_JOBS, LENDER_JOB_S = 3, 9
"""How many batch jobs of one slice the lender submits, and the seconds that each works. They ask
for all of its quota, so one at least has to wait for what is lent."""
LENT_S = 7
"""Seconds for which the first loan is left alone before."""
SHAPE, SHAPE_JOB_S = "3g.40gb", 12
"""What the guest's batch jobs ask for, and the seconds that the second one works. The cluster has
one of these; once it has another, seven of the services' profile are left: the tenants' quota."""
ACT_TIMEOUT_S = 60.0
"""How long each step beside the load may take before the demo goes on without it."""

CHAT_AT_S = 52.0
"""When the first chat is asked for, after the replay begins: between the rise of the second
tenant's replicas and the loan that it gets."""
CHATS, CHAT_PAUSE_S = 5, 0.4
"""How many chats are asked for, one after the other, and the seconds between them. All come while
the first one keeps the replica: the launcher may see none of the others, so short are they."""
CHAT_PROMPT, CHAT_TOKENS = "Why is a slice of a GPU enough for me?", 100
"""What each chat asks, and how many tokens it wants for an answer."""

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
"""How long ledger and accounting may take to see the end of the last replica, and the last loan to
end."""


def rules() -> dict[str, str]:
    """Say for the report how the load is made; there is no seed."""
    shares = "; ".join(
        f"{plan.service} "
        + ", ".join(f"{share:.1%} at {at_s:g} s" for at_s, share in plan.schedule)
        for plan in SERVING
    )
    return {
        "trace": "Azure LLM inference 2023, conversation; sandbox/demo/data/ATTRIBUTION.md",
        "rules": f"times / {COMPRESSION:g}; rows chosen by the hash of their number: {shares}",
        "seed": "none: nothing is random",
    }
