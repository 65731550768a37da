"""What the launcher remembers between turns. All of it can be lost, and all of it is JSON-able."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Annotated

from pydantic import Field

from slicewise.cluster.rpc.messages import DesiredSlotsAnswer
from slicewise.launcher.rules.autoscale.keep_warm import WarmTotal
from slicewise.launcher.rules.autoscale.policy import Memory
from slicewise.launcher.rules.pools.model_work import ModelWork
from slicewise.launcher.rules.pools.types import Told
from slicewise.launcher.rules.turn.backoff import Backoff
from slicewise.launcher.rules.turn.endpoints import Down, Verified
from slicewise.launcher.rules.turn.outliers import Watch
from slicewise.launcher.rules.turn.start_traces import Starts, after_takeover, joined, released


@dataclass(frozen=True)
class DesiredSlots:
    """The desired slots last sent for a generation.

    Attributes:
        run: slots to run.
        at_s: when its answer came, in Unix seconds.
        note: what it told users.
        urgency: what it told Slurm.
        kept_back: slots that quota kept from starting.
        is_firm: whether no slot was on its way out then, so that they stay kept back.
        avoid: nodes on which slots that it releases are rather not to start.
    """

    run: frozenset[int]
    at_s: float
    note: str = ""
    urgency: float = 0.0
    kept_back: frozenset[int] = frozenset()
    is_firm: bool = False
    avoid: tuple[str, ...] = ()


FAILURES_S = 3600.0
"""Seconds for which it is remembered where replicas have failed."""
MOST_FAILURES = 20


@dataclass(frozen=True)
class Failure:
    """A failed start, or a replica that failed later: its node, and when, in Unix seconds."""

    node: str
    at_s: float
    is_borrowed: bool = False


@dataclass(frozen=True)
class GenerationState:
    """What is remembered of one generation; mappings are by slot index.

    Attributes:
        is_proved: whether one of its replicas was ready once.
        draining_since_s: since when a slot drains, also once it has drained.
        down: runs that fail their health checks or are not ready yet.
        alive: slots that were under way at the last look, or were released since.
        leaving: slots with an announced end.
        unheard: slots that were in every request sent since the last answer: the daemon may have
            taken any of these requests. None: all were answered.
        desired: what was last asked of the daemon.
        retired_s: when the daemon was asked to cancel it.
        seen_s: when it was first seen.
        failing: slots that count as a failed start and are still ending; if they turn out to have
            been cancelled, the failure is taken back.
        watched: what runs have answered; not saved, since it changes at each look.
        removed_s: when replicas were last taken out because an inference failed; ``removed`` says
            which one and why, for people.
        given_back_s: when replicas were last given back since they failed their health checks.
        nodes: where slots that are under way were last seen.
        failures: where replicas have failed lately, the newest last. Those on a node are forgotten
            once a later replica has been ready there for long.
        late_s: seconds within which the last failed start was not ready; 0 if it failed otherwise.
        ran_on: nodes on which replicas had settled while ``failures`` were remembered.
        models: of a service in a pool, the models that its ready replicas were told to have.
        allotted_s: by Slurm's clock, when slots got nodes that had to be made ready for them.
    """

    backoff: Backoff = field(default_factory=Backoff)
    is_proved: bool = False
    verified: Mapping[int, Verified] = field(default_factory=dict, hash=False)
    draining_since_s: Mapping[int, float] = field(default_factory=dict, hash=False)
    down: Mapping[int, Down] = field(default_factory=dict, hash=False)
    alive: frozenset[int] = frozenset()
    leaving: frozenset[int] = frozenset()
    desired: DesiredSlots | None = None
    unheard: frozenset[int] | None = None
    retired_s: float = 0.0
    seen_s: float = 0.0
    failing: frozenset[int] = frozenset()
    watched: Annotated[Mapping[int, Watch], Field(exclude=True)] = field(
        default_factory=dict, hash=False
    )
    removed_s: tuple[float, ...] = ()
    removed: str = ""
    given_back_s: tuple[float, ...] = ()
    nodes: Mapping[int, str] = field(default_factory=dict, hash=False)
    failures: tuple[Failure, ...] = ()
    ran_on: frozenset[str] = frozenset()
    late_s: int = 0
    models: Mapping[int, Told] = field(default_factory=dict, hash=False)
    allotted_s: Mapping[int, int] = field(default_factory=dict, hash=False)


@dataclass(frozen=True)
class AbortedRoll:
    """A generation that is cancelled since its starts failed, while the one before it stays.

    Attributes:
        said: how its last start ended.
    """

    array_job_id: int
    failures: int
    said: str = ""


@dataclass(frozen=True)
class ServiceState:
    """What is remembered of a service.

    Attributes:
        memory: the autoscaler's, which outlives generations; None: nothing was seen yet.
        generations: by array job id.
        aborted: the last roll-over, if it was aborted; None once the service is applied again.
        replicas: those of which ``memory`` knows how long requests take, as ``replicas_of`` names
            them; "" is not known.
        starts: its last starts, and how far those under way have come.
        model_work: of a service in a pool, how much its model is asked.
        warm: what its replicas have been kept for without a request that needed them.
    """

    memory: Memory | None = None
    generations: Mapping[int, GenerationState] = field(default_factory=dict, hash=False)
    aborted: AbortedRoll | None = None
    replicas: str = ""
    starts: Starts = field(default_factory=Starts)
    model_work: ModelWork = field(default_factory=ModelWork)
    warm: WarmTotal = field(default_factory=WarmTotal)


State = Mapping[str, ServiceState]
"""What is remembered, by ``tenant/service``."""


def after_answer(
    state: ServiceState, array_job_id: int, desired: DesiredSlots, answer: DesiredSlotsAnswer
) -> ServiceState:
    """Remember what the daemon answered to desired slots.

    Released slots count as alive: one may fail before the next look.
    """
    known = state.generations[array_job_id]
    generation_state = replace(
        known,
        desired=replace(desired, kept_back=frozenset(answer.kept_back)),
        unheard=None,
        alive=known.alive | frozenset(answer.released),
    )
    return replace(
        state,
        generations={**state.generations, array_job_id: generation_state},
        starts=released(state.starts, array_job_id, answer.released, desired.at_s),
    )


def after_silence(state: ServiceState, array_job_id: int, desired: DesiredSlots) -> ServiceState:
    """Remember desired slots that the daemon may have taken, though its answer did not come."""
    generation_before = state.generations[array_job_id]
    unheard = (
        desired.run
        if generation_before.unheard is None
        else generation_before.unheard & desired.run
    )
    generation_state = replace(generation_before, unheard=unheard)
    return replace(state, generations={**state.generations, array_job_id: generation_state})


def after_restart(state: ServiceState) -> ServiceState:
    """Return what was saved as the launcher that leads next begins with it.

    The one before may have asked the daemon for other slots since, so each generation is asked for
    again, and slots that have ended may have been given back.
    """
    generation_states = {
        array: replace(generation, unheard=None if generation.desired is None else frozenset())
        for array, generation in state.generations.items()
    }
    return replace(state, generations=generation_states, starts=after_takeover(state.starts))


def after_retirement(state: ServiceState, array_job_id: int, at_s: float) -> ServiceState:
    """Remember that the daemon was asked to cancel that generation."""
    generation_state = replace(state.generations[array_job_id], retired_s=at_s)
    return replace(state, generations={**state.generations, array_job_id: generation_state})


def with_saved(state: State, saved: State) -> State:
    """Merge what was saved into the state of a launcher that has worked before it could be read.

    What was learnt over time is taken from what was saved, what goes on now from this launcher.
    """
    merged = dict(saved)
    for key, now in state.items():
        before = saved.get(key, now)
        generations = {**before.generations, **now.generations}
        aborted = now.aborted or before.aborted
        learnt = before if before.memory else now
        starts = now.starts if before is now else joined(before.starts, now.starts)
        merged[key] = replace(learnt, generations=generations, aborted=aborted, starts=starts)
    return merged
