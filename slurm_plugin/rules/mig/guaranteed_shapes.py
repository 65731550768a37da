"""Computes the shapes that guarantees need: how many instances of each type repartitions must
leave.

A quota is in slices, but a tenant claims instances of the types that its jobs ask for. A quota of
seven slices is of no use to a tenant that needs a whole GPU if no GPU is whole any more. So each
tenant's guaranteed quota (its nominal less what its children are due) needs these instances:

- those that its jobs in its own QOS hold and wait for: the tenant *claims* these now;
- of each type that its quota names one more, so that its next job finds one;
- with what is left of the guaranteed quota, those that it used lately: of each type, the dearest
  first, the most that it held at a time, or for which its services have slots, within its limits on
  types, what its guarantee covers of them, and as many as fit.

So together they cost no more than the guaranteed quota, and those of all tenants no more than their
nominals.
"""

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from slicewise.cluster.language.jobs import ALLOTTED, JobState, JobView, RunRecord, is_of_service
from slicewise.cluster.language.units import Millislices
from slicewise.slurm_plugin.rules.common.costs import run_cost
from slicewise.slurm_plugin.rules.common.qos_names import holder, holder_of, is_own
from slicewise.slurm_plugin.rules.quota.jobs import is_managed
from slicewise.slurm_plugin.rules.quota.tenants import guaranteed_quota, guaranteed_types, lesser
from slicewise.slurm_plugin.rules.quota.type_limits import binding_type_limits
from slicewise.slurm_plugin.rules.quota.types import MAX_TYPE_LIMIT, Policy
from slicewise.slurm_plugin.rules.quota.waits import waits_of

_Used = Mapping[str, Mapping[str, int]]
"""Instances by tenant and GRES type."""


@dataclass(frozen=True)
class Needs:
    """Instances of each GRES type, over all tenants; ``all`` includes ``claimed``."""

    claimed: Mapping[str, int] = field(default_factory=dict, hash=False)
    all: Mapping[str, int] = field(default_factory=dict, hash=False)


def needs(
    policy: Policy,
    jobs: Iterable[JobView],
    runs: Iterable[RunRecord],
    partitions: frozenset[str],
    *,
    costs: Mapping[str, Millislices],
    models: Mapping[str, str],
) -> Needs:
    """Compute the instances that the guarantees of all tenants need.

    ``runs`` are the runs of the period that counts as lately.
    """
    managed = [job for job in jobs if is_managed(job, partitions)]
    held, claimed = (_claims(managed, waiting=waiting) for waiting in (False, True))
    lately = _most(_peaks(runs, partitions), _slots(managed))
    limits = binding_type_limits(policy, costs, models)
    types = guaranteed_types(policy)
    now, total = Counter[str](), Counter[str]()
    for name, own in guaranteed_quota(policy).items():
        bundle = Counter[str]()
        most = lesser(limits[name], types.get(name, {}))
        for wanted in (held, claimed):
            _add(bundle, wanted.get(name, {}), own, costs, most)
        now.update(bundle)
        _add(bundle, _one_more(bundle, types.get(name, {})), own, costs, most)
        _add(bundle, lately.get(name, {}), own, costs, most)
        total.update(bundle)
    return Needs(now, total)


def _add(
    bundle: Counter[str],
    wanted: Mapping[str, int],
    own: int,
    costs: Mapping[str, Millislices],
    limits: Mapping[str, int],
) -> None:
    """Add wanted instances, the dearest types first, while the guaranteed quota still pays for
    them.

    Instances that ``bundle`` has already count towards them.
    """
    for gres_type in sorted(wanted, key=lambda gres_type: (-costs.get(gres_type, 0), gres_type)):
        if cost := costs.get(gres_type, 0):
            may = min(wanted[gres_type], limits.get(gres_type, MAX_TYPE_LIMIT)) - bundle[gres_type]
            bundle[gres_type] += max(0, min(may, (own - run_cost(bundle, costs)) // cost))


def _one_more(claimed: Mapping[str, int], named: Mapping[str, int]) -> Mapping[str, int]:
    """Of each type that a quota names, one instance more than its tenant claims."""
    return {gres_type: claimed.get(gres_type, 0) + 1 for gres_type in named}


def _claims(jobs: Iterable[JobView], *, waiting: bool) -> _Used:
    """Instances that jobs in their tenants' own QOS hold, and with ``waiting`` also wait for."""
    waiting_types = defaultdict[str, Counter[str]](Counter)
    for job in jobs:
        counts = job.state in ALLOTTED or (waiting and waits_of(job).could_start)
        if counts and is_own(job.qos):
            waiting_types[holder_of(job)].update(_instances(job))
    return waiting_types


def _slots(jobs: Iterable[JobView]) -> _Used:
    """Instances that each tenant's services would hold with all of their slots."""
    held = defaultdict[str, Counter[str]](Counter)
    for job in jobs:
        if job.state is not JobState.ENDED and is_of_service(job):
            held[holder_of(job)].update(_instances(job))
    return held


def _instances(job: JobView) -> Mapping[str, int]:
    tasks = job.tasks
    return {gres_type: count * tasks for gres_type, count in job.gpus.items()}


def _peaks(runs: Iterable[RunRecord], partitions: frozenset[str]) -> _Used:
    """The most instances of each type that a tenant's runs held at a time."""
    changes = defaultdict[tuple[str, str], list[tuple[int, int]]](list)
    for run in runs:
        if run.partition in partitions:
            tenant = holder(run.account, run.qos)
            for gres_type, count in run.gpus.items():
                changes[tenant, gres_type].append((run.start_s, count))
                if run.end_s is not None:
                    changes[tenant, gres_type].append((run.end_s, -count))
    claimed = defaultdict[str, Counter[str]](Counter)
    for (tenant, gres_type), those in changes.items():
        held = 0
        # Within one second, ends come before starts.
        for _, change in sorted(those):
            held += change
            claimed[tenant][gres_type] = max(held, claimed[tenant][gres_type])
    return claimed


def _most(some: _Used, others: _Used) -> _Used:
    return {
        name: Counter(some.get(name, {})) | Counter(others.get(name, {}))
        for name in some.keys() | others.keys()
    }
