"""Describes metrics: name, type, unit and labels of each, and what bounds each label's values.

The daemon and the launcher each have a catalogue of theirs, from which both what they serve and
docs/reference/metrics.md are made. Names follow the conventions of Prometheus: seconds and ratios,
``_total`` at the end of a counter. GPUs are counted in millislices, whole numbers, as everywhere
else (docs/reference/glossary.md).
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

MetricKind = Literal["counter", "gauge", "histogram", "info", "summary"]

LABELS: Mapping[str, str] = {
    "action": "`admit`, `pass` or `refuse`.",
    "adapter": "An adapter of the service, which has 32 at most.",
    "cause": "`died`: it ended by itself. Killed since it did not take a change in time: `hung`; "
    "`late`, if it was only starting.",
    "code": "An [error code](errors.md) of Slicewise's, empty if there is none; of a round of "
    "the launcher also the name of a Python exception.",
    "command": "A command by which Slurm is asked: `squeue`, `sinfo`, `sprio`, `scontrol`, "
    "`pyslurm` or `slurmrestd`.",
    "fallback": "Why weights were not read on the node: a word of "
    "[`service trace`](commands.md#slicewise-service-trace); empty if they were, or without a node "
    "cache.",
    "loop": "A loop of the daemon.",
    "mode": "A mode of the daemon, as slicewise.lua has it.",
    "node": "A node of Slurm's with a meter.",
    "phase": "A [phase of a start](commands.md#slicewise-service-trace).",
    "record": "A kind of record that the daemon reads from Slurm.",
    "service": "A service of the tenant that the gateway carries: `gateway.services_per_tenant` at "
    "most, and `gateway.services` of all tenants.",
    "start_class": "Where the weights were when the start began: `remote`, `copied` or "
    "`node`; `pool`: a running replica of the pool loaded the model.",
    "tenant": "A tenant, which only an operator adds.",
    "version": "The version of the slicewise.lua that asked last: one at a time.",
}
"""What the values of each label are, and why there can't be more and more of them."""

FLAG = "1 or 0"
"""The unit of a gauge that says yes or no."""


@dataclass(frozen=True)
class MetricSpec:
    """A metric.

    Attributes:
        name: as Prometheus shows it, with ``_total`` of a counter and ``_info`` of an info.
        unit: what is counted or measured, with which the name ends before ``_total``; ``FLAG``; or
            "" of a counter that counts what its name says, and of an info.
        labels: some of ``LABELS``.
    """

    name: str
    kind: MetricKind
    unit: str
    text: str
    labels: tuple[str, ...] = ()


def catalogue(*metrics: MetricSpec) -> Mapping[str, MetricSpec]:
    """Return the metrics by name."""
    return {metric.name: metric for metric in metrics}
