"""Checks whether Slurm's settings keep jobs off each other's GPUs and MIG instances."""

from collections.abc import Iterator, Mapping

from slicewise.cluster.language.codes import Code
from slicewise.cluster.language.findings import Finding, Mend, Place, error, warning
from slicewise.slurm_plugin.rules.slurm_config.conf_words import conf_line, conf_words

_TASKS = ("task/cgroup", "task/affinity")
_DEVICES = Mend(Place.CGROUP_CONF, "ConstrainDevices=yes")
_OPEN = "each job can open all GPUs and MIG instances of its node, those of other tenants too"


def isolation_findings(config: Mapping[str, str]) -> tuple[Finding, ...]:
    """Return what lets a job open devices that it was not given.

    ``config`` is the output of ``scontrol show config``, including the settings of cgroup.conf.
    """
    return tuple(_findings(config))


def _findings(config: Mapping[str, str]) -> Iterator[Finding]:
    words = (word.removeprefix("task/") for word in conf_words(config, "TaskPlugin"))
    plugins = [f"task/{word.lower()}" for word in words if word.lower() != "none"]
    if "task/cgroup" not in plugins:
        yield error(
            Code.DEVICES_OPEN,
            "TaskPlugin has no task/cgroup",
            _OPEN,
            conf_line("TaskPlugin", dict.fromkeys((*_TASKS, *plugins))),
            _DEVICES,
            advice="Set TaskPlugin=task/cgroup,task/affinity, and ConstrainDevices=yes in"
            " cgroup.conf.",
        )
    elif config.get("ConstrainDevices", "no").lower() != "yes":
        yield error(
            Code.DEVICES_OPEN,
            "cgroup.conf has no ConstrainDevices=yes",
            _OPEN,
            _DEVICES,
            advice="Set it on all nodes.",
        )
    if config.get("ProctrackType", "").lower() != "proctrack/cgroup":
        yield warning(
            Code.PROCESSES_LOOSE,
            "ProctrackType is not proctrack/cgroup",
            "a process that leaves its job's session may live on with an instance that the next"
            " job gets",
            Mend(Place.SLURM_CONF, "ProctrackType=proctrack/cgroup"),
            advice="Set it while no job runs.",
        )
