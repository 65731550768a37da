"""Generates a cluster as large as Slurm runs: nodes, jobs, tenants and users' submissions."""

import random
from collections.abc import Iterator, Mapping
from dataclasses import replace

from slicewise.cluster.language.jobs import (
    JobState,
    JobTag,
    JobView,
    NodeView,
    PartitionView,
    StepView,
)
from slicewise.cluster.language.periods import Period
from slicewise.cluster.language.units import Millislices, MillisliceSeconds
from slicewise.cluster.rpc.messages import SubmitRequest
from slicewise.slurm_plugin.rules.quota.types import Budget, Policy, Quota, Tenant

TENANTS, NODES, JOBS = 10_000, 10_000, 200_000
_GROUPS = 100
_SERVICES, _SLOTS = 200, 8
_SLICES_PER_NODE = 7
_FIRST_UID = 10_000
_NO_JOB = JobView(
    job_id=0,
    array_job_id=None,
    task_index=None,
    untouched=frozenset(),
    name="train",
    user="",
    uid=0,
    account="",
    partition="gpu",
    qos="",
    state=JobState.PENDING,
    reason="Resources",
    held=False,
    priority=5000,
    admin_comment="",
    comment="",
    tres={"cpu": "1", "mem": "100M", "node": "1", "billing": "1000", "gres/gpu:1g.10gb": "1"},
    nodes=(),
    submit_s=1_700_000_000,
    start_s=None,
    end_s=None,
    eligible_s=1_700_000_000,
    time_limit_s=3600,
    restarts=0,
)


def tenant_name(number: int) -> str:
    """The name of the tenant with that number, below ``TENANTS``."""
    return f"tenant{number:05}"


def policy() -> Policy:
    """Tenants with quotas in groups with budgets; every tenth tenant has a type limit, too."""
    budget = Budget(Period.MONTH, MillisliceSeconds(10**12))
    tenants: dict[str, Tenant] = {
        f"group{n:02}": Tenant(f"group{n:02}", "", Quota(Millislices(0)), budget)
        for n in range(_GROUPS)
    }
    for number in range(TENANTS - _GROUPS):
        limits = {"3g.40gb": 2} if number % 10 == 0 else {}
        quota = Quota(Millislices(7000), Millislices(7000), Millislices(3000), 1, limits)
        name = tenant_name(number)
        tenants[name] = Tenant(name, f"group{number % _GROUPS:02}", quota)
    return tenants


def accounts_by_uid() -> Mapping[int, Mapping[str, frozenset[str]]]:
    """The accounts of each user id: one user for each tenant."""
    return {_FIRST_UID + n: {tenant_name(n): frozenset()} for n in range(TENANTS - _GROUPS)}


def partitions() -> tuple[PartitionView, ...]:
    """The one managed partition."""
    return (PartitionView("gpu", {"gres/gpu:1g.10gb": 1000.0, "gres/gpu:3g.40gb": 3500.0}, ""),)


def nodes() -> tuple[NodeView, ...]:
    """Nodes with one GPU each; 6 of 7 1g are allotted, or 2 of 3 1g beside a free 3g."""
    cuts = ({"1g.10gb": _SLICES_PER_NODE}, {"1g.10gb": 3, "3g.40gb": 1})
    return tuple(
        NodeView(
            name=f"gpu{number:05}",
            address=f"10.{number // 62500}.{number // 250 % 250}.{number % 250}",
            states=frozenset({"MIXED"}),
            gpus=cuts[number % 2],
            gpus_allotted={"1g.10gb": 2 + 4 * (number % 2 == 0)},
            partitions=frozenset({"gpu"}),
        )
        for number in range(NODES)
    )


def jobs() -> tuple[JobView, ...]:
    """All jobs: held slots of services; of the other jobs a third runs and the rest waits."""
    return (*_slots(), *(_job(number) for number in range(_SERVICES * _SLOTS, JOBS)))


def _job(number: int) -> JobView:
    job = _waiting(number + 1, number % (TENANTS - _GROUPS), "")
    return running(job) if number % 3 == 0 else job


def _waiting(job_id: int, owner: int, service: str) -> JobView:
    name = tenant_name(owner)
    return replace(
        _NO_JOB,
        job_id=job_id,
        user=f"user{owner}",
        uid=_FIRST_UID + owner,
        account=name,
        qos=f"slicewise_{name}",
        admin_comment=JobTag(f"{job_id:016x}", name, service or None).text(),
    )


def running(job: JobView) -> JobView:
    """The same job, running on a node."""
    node = f"gpu{job.job_id % NODES:05}"
    return replace(job, state=JobState.RUNNING, reason="None", nodes=(node,), start_s=1_700_000_500)


def _slots() -> Iterator[JobView]:
    """Jobs of services' slots, held by the daemon because the launcher has no wish for them."""
    for service in range(_SERVICES):
        array = service * _SLOTS + 1
        for index in range(_SLOTS):
            job = _waiting(array + index, service, f"service{service}")
            held = replace(job, array_job_id=array, task_index=index, reason="JobHeldAdmin")
            yield replace(held, held=True)


def directives(array_job_id: int) -> str:
    """The batch script of the service with that array, with its ``#SLICEWISE`` lines."""
    service = array_job_id // _SLOTS
    lines = (f"name=service{service}", f"tenant={tenant_name(service)}", f"max_replicas={_SLOTS}")
    return "#!/bin/bash\n" + "".join(f"#SLICEWISE {line}\n" for line in lines)


def steps() -> tuple[StepView, ...]:
    """No steps: no job has reserved ports."""
    return ()


def submissions(base: SubmitRequest, seed: int, count: int) -> list[bytes]:
    """Lines as slicewise.lua sends them, drawn from all tenants; one in ten names no GPU type."""
    choose = random.Random(seed)  # noqa: S311 -- no secret
    wants = ("gres:gpu:1g.10gb:1",) * 8 + ("gres:gpu:auto:1", "gres:gpu:3g.40gb:1")
    lines = []
    for _ in range(count):
        owner = choose.randrange(TENANTS - _GROUPS)
        changes = {
            "token": f"{choose.getrandbits(64):016x}",
            "uid": _FIRST_UID + owner,
            "account": tenant_name(owner),
            "default_account": "",
            "gres": choose.choice(wants),
        }
        lines.append(base.model_copy(update=changes).model_dump_json(exclude_defaults=True))
    return [line.encode() + b"\n" for line in lines]
