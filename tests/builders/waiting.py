"""Waiting jobs as decisions see them."""

from slicewise.slurm_plugin.rules.quota.jobs import WaitingJob


def waiting_since(since_s: int, cost: int, tasks: int = 1) -> WaitingJob:
    """A job that waits for its tenant's own quota."""
    return WaitingJob(1, "vision", cost, (), tasks=tasks, since_s=since_s)
