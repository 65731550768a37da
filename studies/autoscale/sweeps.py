"""The policies, and the settings of each policy's own target with which it is replayed."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from studies.autoscale.dynamo import Dynamo
from studies.autoscale.fixed import Fixed
from studies.autoscale.hpa import Hpa
from studies.autoscale.kpa import Kpa
from studies.autoscale.optimum import replay_optimum
from studies.autoscale.peak_hold import PeakHold
from studies.autoscale.policy import Policy
from studies.autoscale.ray import Ray
from studies.autoscale.seasonal import Seasonal
from studies.autoscale.slicewise import Slicewise
from studies.autoscale.workload import Workload
from studies.autoscale.world import Outcome, replay

USE = (0.25, 0.35, 0.5, 0.6, 0.7, 0.8, 0.9, 1.0, 1.2, 1.6)
"""Requests per replica as a share of its concurrency."""
AIMS = (0.9, 0.95, 0.98, 0.99, 0.999)
STATED = (0.9, 0.95, 0.99)
NUMBERS = (1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 12, 14, 16, 18, 20, 23, 26, 30, 35, 40)
QUANTILES = (0.5, 0.7, 0.8, 0.9, 0.95, 0.97, 0.98, 0.99, 0.995, 1.0)
PEAKS_S = (0.0, 1.0, 2.0, 3.0, 4.0, 5.0, 7.0, 10.0, 15.0)
"""Targets of the clairvoyant: longest peaks, in seconds, that it lets be late."""


@dataclass(frozen=True)
class Sweep:
    """How to replay a policy, and the targets with which it is replayed."""

    replay: Callable[[Workload, float], Outcome]
    targets: tuple[float, ...]


def _of(policy: Callable[[int, float], Policy]) -> Callable[[Workload, float], Outcome]:
    return lambda workload, target: replay(workload, policy(workload.concurrency, target))


def _replay_slicewise(workload: Workload, target: float) -> Outcome:
    """Replay Slicewise with the order of requests that its own gateway keeps."""
    policy = Slicewise(workload.concurrency, target)
    return replay(workload, policy, lambda: policy.in_time)


SWEEPS: Mapping[str, Sweep] = {
    "kpa": Sweep(_of(Kpa), USE),
    "hpa": Sweep(_of(Hpa), USE),
    "ray": Sweep(_of(Ray), USE),
    "dynamo": Sweep(_of(Dynamo), USE),
    "peak_hold": Sweep(_of(PeakHold), USE),
    "seasonal": Sweep(_of(Seasonal), QUANTILES),
    "fixed": Sweep(_of(Fixed), NUMBERS),
    "optimum": Sweep(replay_optimum, PEAKS_S),
    "slicewise_fifo": Sweep(_of(Slicewise), STATED),
    "slicewise": Sweep(_replay_slicewise, AIMS),
}
BASELINES = ("kpa", "hpa", "ray", "dynamo", "peak_hold", "seasonal")
HINDSIGHT = ("fixed", "optimum")
"""What no service can be told beforehand: each load has its own setting."""
