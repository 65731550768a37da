"""Checks whether Slurm's settings keep jobs off each other's GPUs and MIG instances."""

from collections.abc import Iterator, Mapping


def isolation_faults(config: Mapping[str, str]) -> tuple[str, ...]:
    """Return what lets a job open devices that it was not given: one sentence each, with a code.

    ``config`` is the output of ``scontrol show config``, including the settings of cgroup.conf.
    """
    return tuple(_faults(config))


def _faults(config: Mapping[str, str]) -> Iterator[str]:
    plugins = config.get("TaskPlugin", "").lower().split(",")
    if "task/cgroup" not in plugins:
        yield (
            "TaskPlugin has no task/cgroup: each job can open all GPUs and MIG instances of its"
            " node, those of other tenants too. Set TaskPlugin=task/cgroup,task/affinity, and"
            " ConstrainDevices=yes in cgroup.conf [SW-DEVICES-OPEN]."
        )
    elif config.get("ConstrainDevices", "no").lower() != "yes":
        yield (
            "cgroup.conf has no ConstrainDevices=yes: each job can open all GPUs and MIG instances"
            " of its node, those of other tenants too. Set it on all nodes [SW-DEVICES-OPEN]."
        )
    if config.get("ProctrackType", "").lower() != "proctrack/cgroup":
        yield (
            "ProctrackType is not proctrack/cgroup: a process that leaves its job's session may"
            " live on with an instance that the next job gets. Set it [SW-PROCESSES-LOOSE]."
        )
