"""Begins to learn with what others have learnt of such replicas, and passes on what was learnt.

What comes from elsewhere is a prior: the objectives bound it as they bound own samples, nothing
beyond it is tried before there is one, and the first one says how much slower or faster these
replicas are (``capacity.py``).
"""

from dataclasses import replace

from slicewise.launcher.rules.autoscale.capacity import ReplicaCapacity, begun, points_of
from slicewise.launcher.rules.autoscale.crowding import Crowding
from slicewise.launcher.rules.autoscale.curve import Curve, Prior
from slicewise.launcher.rules.autoscale.policy import Memory, late_first_s, stated_bounds
from slicewise.launcher.rules.autoscale.service_time import WorkDone
from slicewise.launcher.rules.autoscale.tokens import TokensDone
from slicewise.launcher.rules.autoscale.types import Scaling


def learnt_curve(memory: Memory) -> Curve | None:
    """Return what a service has learnt of its replicas; None without a sample of its own."""
    known = memory.capacity
    if not known.is_sampled:
        return None
    before = Curve() if known.prior is None else known.prior.curve
    each_s, late_s = memory.tokens.per_token_s, late_first_s(memory)
    return Curve(
        *points_of(known),
        before.steps if each_s is None else memory.work.mean_s / each_s,
        before.first_steps if each_s is None or late_s is None else late_s / each_s,
    )


def with_other_replicas(memory: Memory, scaling: Scaling, prior: Prior | None) -> Memory:
    """Forget what was learnt of replicas, since others serve from now on; begin with ``prior``.

    When requests come goes on as it was, and, until they tell it, how long they take.
    """
    if not scaling.learns:
        return memory
    capacity = ReplicaCapacity()
    if prior is not None and _is_complete(prior.curve, scaling):
        steps = (prior.curve.first_steps, prior.curve.steps)
        capacity = begun(prior, stated_bounds(scaling, scaling.concurrency, *steps))
    took_s = capacity.full_s
    return replace(
        memory,
        capacity=capacity,
        tokens=TokensDone(memory.tokens.seen),
        crowding=Crowding(),
        work=memory.work if took_s is None else WorkDone(took_s, 1.0),
    )


def _is_complete(curve: Curve, scaling: Scaling) -> bool:
    """Whether all that is an objective was measured."""
    times_tokens = scaling.ttft_s is not None or scaling.tpot_s is not None
    has_firsts = scaling.ttft_s is None or curve.first_steps is not None
    return has_firsts and bool(curve.token if times_tokens else curve.service)
