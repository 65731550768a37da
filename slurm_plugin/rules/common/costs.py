"""What the GPU instances of a run cost."""

from collections.abc import Mapping

from slicewise.cluster.language.jobs import JobView
from slicewise.cluster.language.units import Millislices


def run_cost(gres: Mapping[str, int], costs: Mapping[str, Millislices]) -> Millislices:
    """Sum up the millislices of GPU instances by type; a type without a known cost counts 0."""
    # A generator would take twice as long.
    total = 0
    for gres_type, count in gres.items():
        total += count * costs.get(gres_type, 0)
    return Millislices(total)


def job_cost(job: JobView, costs: Mapping[str, Millislices]) -> Millislices:
    """Sum up the millislices of a job, or of each task of an array."""
    return run_cost(job.gpus, costs)
