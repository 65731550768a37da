"""Admission: what becomes of a submission, decided on a snapshot.

The first rule that applies decides, in this order:

1. no managed partition asked for: pass; SW-SERVICE-PARTITION for a service
2. directives that can't be read, or a bad service: SW-DIRECTIVE, SW-SERVICE
3. a service for another tenant than the account that is charged: SW-SERVICE-TENANT
4. a tenant without quota: SW-TENANT-UNKNOWN if the account is not the user's, else SW-QUOTA-NONE
5. GRES that can't be read: SW-GRES
6. a service that needs more memory than any type has: SW-NEED-TOO-LARGE; of a profile that no node
   has: SW-PROFILE-UNKNOWN; whose script asks for anything but one GPU of it: SW-SERVICE-GRES
7. GPU by GPU: of no type: SW-GRES-TYPE; of a type that no node has: SW-PROFILE-UNKNOWN
8. one task in QOS slicewise-borrowed of a tenant that may borrow nothing: SW-QUOTA-BORROW; one
   that alone costs more than the quota, there with what may be borrowed, or has more instances
   of a type than the tenant may have: SW-QUOTA-EXCEEDED
9. a service that lives already: SW-SERVICE-EXISTS
10. an array that is not the service's slots: SW-SERVICE-ARRAY
11. otherwise: admit

What the daemon's own mode makes of the answer comes last: ``as_mode_allows``.
"""

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Literal

from cluster.errors import InvalidInputError, Refusal
from cluster.gres import GpuRequest, gres_text, parse_gpu_requests
from cluster.jobs import JobTag
from cluster.service import ServiceSpec, directives_of_script, service_spec
from cluster.units import Millislices, slices_text
from cluster.wire import VERSION, CheckRequest, SubmitAnswer, SubmitRequest
from slurm_plugin.decide.limits import BORROWED_QOS, qos_name
from slurm_plugin.decide.priority import site_factor


@dataclass(frozen=True)
class GpuType:
    """A GRES type that nodes have.

    Attributes:
        memory_mib: of one instance; None where no source gives it.
        total, free: instances in the cluster.
    """

    name: str
    cost_millislices: Millislices
    memory_mib: int | None
    total: int
    free: int


@dataclass(frozen=True)
class Snapshot:
    """What admission knows of ledger and cluster.

    Attributes:
        partitions: the managed ones.
        quotas: nominal millislices in effect by tenant, as they are in force in Slurm.
        borrowing_limits: how much more it may borrow.
        type_limits: instances of a type that it may have at most, where there is a limit.
        used: millislices that a tenant's jobs hold now.
        gpu_types: by name.
        services: array job ids of living services by tenant and name; None is one just admitted.
        accounts_by_uid: accounts that a user may submit to; who is not in it is not known.
    """

    partitions: frozenset[str]
    quotas: Mapping[str, int] = field(hash=False)
    borrowing_limits: Mapping[str, int] = field(hash=False)
    type_limits: Mapping[str, Mapping[str, int]] = field(hash=False)
    used: Mapping[str, int] = field(hash=False)
    gpu_types: Mapping[str, GpuType] = field(hash=False)
    services: Mapping[tuple[str, str], int | None] = field(hash=False)
    accounts_by_uid: Mapping[int, frozenset[str]] = field(hash=False)


def decide(request: SubmitRequest, snapshot: Snapshot, token: str) -> SubmitAnswer:
    """The answer to a submission; ``token`` is what marks the job as ours if it is admitted."""
    if not _is_managed(request.partition, snapshot.partitions):
        return _unmanaged(request, snapshot.partitions)
    try:
        return _admit(request, snapshot, token)
    except InvalidInputError as error:
        return refused(error.refusal)


Mode = Literal["observe", "advise", "enforce"]


def as_mode_allows(answer: SubmitAnswer, request: SubmitRequest, mode: Mode) -> SubmitAnswer:
    """The answer of a daemon of that mode; only in enforce does it set limits and move slots.

    Else a plain job passes, with the ``tag`` or ``code`` that it would have got: its tenant's QOS
    may not be there. In advise a refusal stays one, for slicewise.lua to tell. A service is
    refused (SW-SERVICE-MODE): nobody would release its slots.
    """
    if mode == "enforce":
        return answer
    if answer.action == "admit" and request.directives:
        return refused(
            Refusal(
                "SW-SERVICE-MODE",
                f"The slicewise daemon is in mode {mode}: it does not run services yet.",
                'The operator sets mode = "enforce" in slicewise.toml.',
            )
        )
    if answer.action == "refuse" and (mode == "advise" or request.directives):
        return answer
    return answer.model_copy(update={"action": "pass"})


def submission_of(check: CheckRequest, uid: int, partitions: frozenset[str]) -> SubmitRequest:
    """What ``sbatch`` would submit for a service, rendered as it should be.

    Raises InvalidInputError (SW-DIRECTIVE, SW-SERVICE).
    """
    spec = service_spec(directives_of_script(check.directives))
    return SubmitRequest(
        v=VERSION,
        op="submit",
        uid=uid,
        account=check.tenant,
        partition=spec.partition or min(partitions),
        array=f"0-{spec.max_replicas - 1}",
        directives=check.directives,
    )


def refused(refusal: Refusal) -> SubmitAnswer:
    """A refusal as slicewise.lua shows it."""
    return SubmitAnswer(
        action="refuse", code=refusal.code, message=refusal.message, hint=refusal.hint
    )


def check_membership(uid: int, tenant: str, snapshot: Snapshot) -> None:
    """Raise SW-TENANT-UNKNOWN for no account, or for one that Slurm does not list as the user's."""
    accounts = snapshot.accounts_by_uid.get(uid, frozenset())
    yours = ", ".join(sorted(accounts)) or "none"
    if not tenant:
        raise InvalidInputError(
            "SW-TENANT-UNKNOWN",
            "The job names no account, and you have no default one.",
            f"Write --account=ACCOUNT; yours: {yours}.",
        )
    if tenant not in accounts:
        raise InvalidInputError(
            "SW-TENANT-UNKNOWN",
            f"tenant: {tenant!r} is no Slurm account of yours.",
            f"Yours: {yours}.",
        )


def _is_managed(partitions: str, managed: frozenset[str]) -> bool:
    """A job may name several partitions; it is ours if it might run in a managed one."""
    return any(name in managed for name in partitions.split(","))


def _unmanaged(request: SubmitRequest, managed: frozenset[str]) -> SubmitAnswer:
    if not request.directives:
        return SubmitAnswer(action="pass")
    return refused(
        Refusal(
            "SW-SERVICE-PARTITION",
            f"partition: services do not run in {request.partition!r}.",
            f"They run in: {', '.join(sorted(managed))}.",
        )
    )


def _admit(request: SubmitRequest, snapshot: Snapshot, token: str) -> SubmitAnswer:
    # Slurm stores account names in lower case.
    tenant = (request.account or request.default_account).lower()
    spec = _service(request, tenant)
    nominal = _nominal(request.uid, tenant, snapshot)
    asked = _gpus(request)
    if spec is not None:
        asked = (_replica(spec, asked, snapshot),)
    borrows = request.qos == BORROWED_QOS
    limit = _borrowing_limit(tenant, snapshot) if borrows else 0
    _check_cost(tenant, nominal, limit, asked, snapshot)
    _check_types(tenant, asked, snapshot.type_limits.get(tenant, {}))
    if spec is not None:
        _check_is_new(spec, snapshot)
        _check_array(request.array, spec)
    return SubmitAnswer(
        action="admit",
        gres=gres_text(asked[0]) if spec is not None else None,
        qos=BORROWED_QOS if borrows else qos_name(tenant),
        site_factor=site_factor(nominal, snapshot.used.get(tenant, 0)),
        tag=JobTag(token, tenant, spec.name if spec is not None else None).text(),
        hold=spec is not None,
    )


def _service(request: SubmitRequest, tenant: str) -> ServiceSpec | None:
    if not request.directives:
        return None
    spec = service_spec(directives_of_script(request.directives))
    if spec.tenant != tenant:
        raise InvalidInputError(
            "SW-SERVICE-TENANT",
            f"tenant: the service is {spec.tenant!r}'s, but the job is charged to {tenant!r}.",
            f"Write #SBATCH --account={spec.tenant}, or tenant={tenant}.",
        )
    return spec


def _borrowing_limit(tenant: str, snapshot: Snapshot) -> int:
    limit = snapshot.borrowing_limits.get(tenant, 0)
    if not limit:
        raise InvalidInputError(
            "SW-QUOTA-BORROW",
            f"QOS {BORROWED_QOS}: {tenant!r} may not borrow quota.",
            "Leave out --qos, or ask the operator for: "
            f"slicewise tenant-quota set {tenant} --borrowing-limit N",
        )
    return limit


def _nominal(uid: int, tenant: str, snapshot: Snapshot) -> int:
    nominal = snapshot.quotas.get(tenant)
    if nominal is None:
        # Whom this host doesn't know Slurm itself judges.
        if not tenant or uid in snapshot.accounts_by_uid:
            check_membership(uid, tenant, snapshot)
        raise InvalidInputError(
            "SW-QUOTA-NONE",
            f"tenant: {tenant!r} has no quota, so it may not use GPUs.",
            f"Ask the operator for: slicewise tenant-quota set {tenant} --nominal N",
        )
    return nominal


def _gpus(request: SubmitRequest) -> tuple[GpuRequest, ...]:
    texts = (request.gres, request.tres_per_job, request.tres_per_socket, request.tres_per_task)
    return tuple(gpu for text in texts for gpu in parse_gpu_requests(text))


def _replica(spec: ServiceSpec, asked: tuple[GpuRequest, ...], snapshot: Snapshot) -> GpuRequest:
    """The one GPU of a service's replica."""
    profile = spec.profile or _cheapest(spec.need_gib or 0.0, snapshot)
    replica = GpuRequest(profile, 1)
    _cost(replica, snapshot)
    if asked and asked != (replica,):
        raise InvalidInputError(
            "SW-SERVICE-GRES",
            f"The script asks for {', '.join(map(gres_text, asked))}, a replica has "
            f"{gres_text(replica)}.",
            f"Write #SBATCH --gres={gres_text(replica)}, or leave it out.",
        )
    return replica


def _cheapest(need_gib: float, snapshot: Snapshot) -> str:
    """The type of least cost whose memory fits; among equals the freer one, then by name."""
    types = snapshot.gpu_types.values()
    fitting = [t for t in types if t.memory_mib is not None and t.memory_mib >= need_gib * 1024]
    if not fitting:
        largest = max((t.memory_mib or 0 for t in types), default=0)
        raise InvalidInputError(
            "SW-NEED-TOO-LARGE",
            f"need_gib: {need_gib:g} GiB fit into no GPU slice of this cluster.",
            f"The largest has {largest / 1024:.1f} GiB; {_types_text(snapshot)}.",
        )
    return min(fitting, key=lambda t: (t.cost_millislices, -t.free, t.name)).name


def _check_cost(
    tenant: str, nominal: int, borrowing: int, asked: Iterable[GpuRequest], snapshot: Snapshot
) -> None:
    cost = sum(_cost(gpu, snapshot) for gpu in asked)
    if cost > nominal + borrowing:
        more = f", with {slices_text(borrowing)} that it may borrow" if borrowing else ""
        raise InvalidInputError(
            "SW-QUOTA-EXCEEDED",
            f"One task costs {slices_text(cost)} slices, the quota of {tenant!r} is "
            f"{slices_text(nominal)}{more}: it could never start.",
            f"Ask for less, or the operator for a larger quota; {_types_text(snapshot)}.",
        )


def _check_types(tenant: str, asked: Iterable[GpuRequest], limits: Mapping[str, int]) -> None:
    counts: Counter[str] = Counter()
    for gpu in asked:
        counts[gpu.gres_type or ""] += gpu.count
    for gres_type, count in counts.items():
        if count > limits.get(gres_type, count):
            raise InvalidInputError(
                "SW-QUOTA-EXCEEDED",
                f"One task has {count} instances of {gres_type}, {tenant!r} may have "
                f"{limits[gres_type]}: it could never start.",
                "Ask for fewer or another type, or the operator for a higher limit.",
            )


def _cost(gpu: GpuRequest, snapshot: Snapshot) -> int:
    if gpu.gres_type is None:
        raise InvalidInputError(
            "SW-GRES-TYPE",
            "A GPU of no type is asked for; here GPUs are given in slices.",
            f"Write --gres=gpu:TYPE:{gpu.count}; {_types_text(snapshot)}.",
        )
    known = snapshot.gpu_types.get(gpu.gres_type)
    if known is None:
        raise InvalidInputError(
            "SW-PROFILE-UNKNOWN",
            f"profile: no node has GPU slices of type {gpu.gres_type!r}.",
            f"There are {_types_text(snapshot)}.",
        )
    return known.cost_millislices * gpu.count


def _types_text(snapshot: Snapshot) -> str:
    types = sorted(snapshot.gpu_types.values(), key=lambda t: (t.cost_millislices, t.name))
    costs = (f"{t.name} ({slices_text(t.cost_millislices)})" for t in types)
    return f"types (slices each): {', '.join(costs)}"


def _check_is_new(spec: ServiceSpec, snapshot: Snapshot) -> None:
    key = (spec.tenant, spec.name)
    if key not in snapshot.services:
        return
    job_id = snapshot.services[key]
    if job_id is None:
        raise InvalidInputError(
            "SW-SERVICE-EXISTS",
            f"name: {spec.tenant!r} has submitted a service {spec.name!r} this moment.",
            "If that failed, try again in a few seconds.",
        )
    raise InvalidInputError(
        "SW-SERVICE-EXISTS",
        f"name: {spec.tenant!r} already has a service {spec.name!r}: job {job_id}.",
        f"Choose another name, or first: slicewise service delete {spec.name}",
    )


def _check_array(array: str, spec: ServiceSpec) -> None:
    wanted = f"0-{spec.max_replicas - 1}"
    allowed = {wanted, "0"} if spec.max_replicas == 1 else {wanted}
    if array not in allowed:
        raise InvalidInputError(
            "SW-SERVICE-ARRAY",
            f"max_replicas: {spec.max_replicas} replicas need the array {wanted}, "
            f"not {array or 'no array'!s}.",
            f"Write #SBATCH --array={wanted}.",
        )
