"""What the launcher remembers between turns; all of it can be lost, and all of it is JSON-able."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from cluster.wire import WishAnswer
from launcher.decide.autoscale import Memory
from launcher.decide.backoff import Backoff
from launcher.decide.runs import Down, Verified


@dataclass(frozen=True)
class Wish:
    """The last wish sent for a generation, when its answer came, what it told users and Slurm.

    Attributes:
        kept_back: what quota kept from starting.
        is_firm: nothing was on its way out then, so it stays kept back.
    """

    run: frozenset[int]
    at_s: float
    note: str = ""
    urgency: float = 0.0
    kept_back: frozenset[int] = frozenset()
    is_firm: bool = False


@dataclass(frozen=True)
class GenerationState:
    """What is remembered of one generation; mappings are by slot index.

    Attributes:
        is_proved: one of its replicas was ready once.
        draining_since_s: of what drains, or has drained.
        down: runs that fail their health checks.
        alive: slots that were under way at the last look, or were released since.
        leaving: of these, those whose end was announced.
        unheard: slots that every wish had which was sent since without an answer: the daemon may
            have taken any of them. None: all were answered.
        retired_s: when the daemon was asked to cancel it.
        seen_s: when it was seen first.
        failing: slots that count as a failed start, and still end: if it turns out that they were
            cancelled, that is taken back.
    """

    backoff: Backoff = field(default_factory=Backoff)
    is_proved: bool = False
    verified: Mapping[int, Verified] = field(default_factory=dict, hash=False)
    draining_since_s: Mapping[int, float] = field(default_factory=dict, hash=False)
    down: Mapping[int, Down] = field(default_factory=dict, hash=False)
    alive: frozenset[int] = frozenset()
    leaving: frozenset[int] = frozenset()
    wish: Wish | None = None
    unheard: frozenset[int] | None = None
    retired_s: float = 0.0
    seen_s: float = 0.0
    failing: frozenset[int] = frozenset()


@dataclass(frozen=True)
class ServiceState:
    """What is remembered of a service.

    Attributes:
        memory: of the autoscaler: it outlives generations. None: nothing was seen yet.
        generations: by array job id.
    """

    memory: Memory | None = None
    generations: Mapping[int, GenerationState] = field(default_factory=dict, hash=False)


State = Mapping[str, ServiceState]
"""By ``tenant/service``."""


def after_wish(
    state: ServiceState, array_job_id: int, wish: Wish, answer: WishAnswer
) -> ServiceState:
    """Remember what the daemon answered; a released slot may have failed before the next look."""
    known = state.generations[array_job_id]
    found = replace(
        known,
        wish=replace(wish, kept_back=frozenset(answer.kept_back)),
        unheard=None,
        alive=known.alive | frozenset(answer.released),
    )
    return replace(state, generations={**state.generations, array_job_id: found})


def after_silence(state: ServiceState, array_job_id: int, wish: Wish) -> ServiceState:
    """Remember a wish that the daemon may have taken, though its answer did not come."""
    known = state.generations[array_job_id]
    unheard = wish.run if known.unheard is None else known.unheard & wish.run
    found = replace(known, unheard=unheard)
    return replace(state, generations={**state.generations, array_job_id: found})


def after_retirement(state: ServiceState, array_job_id: int, at_s: float) -> ServiceState:
    """Remember that the daemon was asked to cancel that generation."""
    found = replace(state.generations[array_job_id], retired_s=at_s)
    return replace(state, generations={**state.generations, array_job_id: found})


def with_saved(state: State, saved: State) -> State:
    """What a launcher knows that has worked before it could read what the last one had saved.

    What was learnt over time is the last one's, what goes on now its own.
    """
    joined = dict(saved)
    for key, now in state.items():
        before = saved.get(key, now)
        generations = {**before.generations, **now.generations}
        joined[key] = ServiceState(before.memory or now.memory, generations)
    return joined
