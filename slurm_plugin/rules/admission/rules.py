"""Decides from a snapshot whether a submission passes unchanged, is refused or is admitted.

The first rule that applies decides, in this order:

1. no managed partition is requested: pass, or SW-SERVICE for a service
2. unreadable directives: SW-DIRECTIVE; an invalid service: SW-SERVICE
3. a job that asks for no GPUs: pass
4. a service of another tenant than the account that is charged: SW-SERVICE
5. an account that the user may not use: SW-TENANT-UNKNOWN; an account without quota: SW-QUOTA-NONE;
   a service with an audience that names what is no tenant: SW-TENANT-UNKNOWN
6. class high, which the tenant may not have: SW-CLASS-FORBIDDEN; a QOS of the site that stands for
   a class, but that the user may not name: SW-QOS
7. GPUs (``request.py``): shared GPUs without a price, unreadable requests, GPUs without a type:
   SW-GRES; more memory than any type has: SW-NEED-TOO-LARGE; a type that no node has:
   SW-PROFILE-UNKNOWN. For a service: SW-NEED-TOO-LARGE, SW-PROFILE-UNKNOWN, and SW-SERVICE if its
   script asks for anything but the GPUs of one replica
8. the QOS (``qos.py``): another tenant's QOS: SW-QOS; the borrowed QOS of a tenant that may
   borrow nothing: SW-QUOTA-BORROW; one task that costs more than the tenant could ever have:
   SW-QUOTA-EXCEEDED
9. one task with more instances of a type than the tenant may have: SW-QUOTA-EXCEEDED; one task that
   could use up more than a whole period's budget: SW-BUDGET-EXCEEDED
10. a living service of the same name that belongs to another user: SW-SERVICE-EXISTS; a service
    with too many generations: SW-SERVICE-ENDING; a new service for which the gateway has no
    place: SW-SERVICE-PLACES
11. an array with other indices than the service's slots: SW-SERVICE
12. otherwise: admit

``as_mode_allows`` then adapts the answer to the daemon's mode.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from math import ceil
from typing import Literal

from slicewise.cluster.language.accounts import account_name
from slicewise.cluster.language.audience import EVERY_TENANT, tenants_of
from slicewise.cluster.language.codes import Code
from slicewise.cluster.language.errors import InvalidInputError, Refusal
from slicewise.cluster.language.gres import SHARED, gres_text
from slicewise.cluster.language.job_class import JobClass
from slicewise.cluster.language.jobs import JobTag
from slicewise.cluster.language.replica_shape import ReplicaShape
from slicewise.cluster.language.service import (
    JobDirectives,
    ServiceSpec,
    directives_of_script,
    is_service,
    job_directives,
    spec_of_directives,
)
from slicewise.cluster.language.units import slices_words
from slicewise.cluster.rpc.messages import VERSION, CheckRequest, SubmitAnswer, SubmitRequest
from slicewise.slurm_plugin.rules.admission.gpu_type import choose_type
from slicewise.slurm_plugin.rules.admission.priority import PriorityTerms, site_factor, smallness
from slicewise.slurm_plugin.rules.admission.qos import QosChoice, QosRequest, choose_qos, words
from slicewise.slurm_plugin.rules.admission.request import (
    ResolvedRequest,
    asks_for_gpus,
    gpu_type,
    gpus_of,
    resolved_request,
    too_large,
)
from slicewise.slurm_plugin.rules.admission.service_places import check_generations, check_place
from slicewise.slurm_plugin.rules.admission.snapshot import GpuType, Recent, Snapshot

_NOTHING_RECENT = Recent()
_TEXT_LIMIT = 1000
_FEW = 12


@dataclass(frozen=True)
class AdmissionDecision:
    """An answer, and what the daemon remembers of the submission until its next look at Slurm.

    Attributes:
        tag: the tag of the job; None unless the job is admitted.
        cost_millislices: the cost of one task.
        instances: GPU instances of one task, by type.
        is_type_chosen: whether their type was chosen for it.
    """

    answer: SubmitAnswer
    tag: JobTag | None = None
    cost_millislices: int = 0
    instances: Mapping[str, int] = field(default_factory=dict, hash=False)
    is_type_chosen: bool = False


def decide(
    request: SubmitRequest, snapshot: Snapshot, token: str, recent: Recent = _NOTHING_RECENT
) -> AdmissionDecision:
    """Answer a submission. ``token`` marks the job as Slicewise's if it is admitted."""
    if not _is_managed(request.partition, snapshot.partitions):
        return AdmissionDecision(_unmanaged(request, snapshot.partitions))
    try:
        return _admit(request, snapshot, token, recent)
    except InvalidInputError as error:
        return AdmissionDecision(refused(error.refusal))


Mode = Literal["observe", "advise", "enforce"]


def as_mode_allows(answer: SubmitAnswer, request: SubmitRequest, mode: Mode) -> SubmitAnswer:
    """Adapt an answer to the daemon's mode.

    Only in enforce does the daemon set limits. In the other modes a job passes, with the ``tag`` or
    ``code`` that it would have got, because its tenant's QOS may not exist. In advise a refusal
    stays a refusal, which slicewise.lua shows. So does that of a service in each mode: the daemon
    would not run it. One that passes is tagged by the daemon (``service_tags.py``).
    """
    if mode == "enforce":
        return answer
    service = bool(request.directives) and is_service(request.directives)
    if answer.action == "refuse" and (mode == "advise" or service):
        return answer
    return answer.model_copy(update={"action": "pass"})


def submission_of(check: CheckRequest, uid: int, partitions: frozenset[str]) -> SubmitRequest:
    """Build the request that ``sbatch`` would make for a correctly rendered service.

    Raises InvalidInputError (SW-DIRECTIVE, SW-SERVICE).
    """
    spec = spec_of_directives(directives_of_script(check.directives))
    return SubmitRequest(
        v=VERSION,
        op="submit",
        uid=uid,
        account=check.tenant,
        partition=spec.partition or min(partitions),
        array=f"0-{spec.max_replicas - 1}",
        time_limit_min=spec.time_limit_min,
        directives=check.directives,
    )


def refused(refusal: Refusal) -> SubmitAnswer:
    """Turn a refusal into the answer that slicewise.lua shows."""
    # The texts quote what users wrote, which may be of any length.
    message, hint = refusal.message[:_TEXT_LIMIT], refusal.hint[:_TEXT_LIMIT]
    return SubmitAnswer(action="refuse", code=refusal.code, message=message, hint=hint)


def check_membership(uid: int, tenant: str, snapshot: Snapshot) -> None:
    """Check that the tenant is one of the user's accounts in Slurm.

    Raises InvalidInputError (SW-TENANT-UNKNOWN) if it is not, or if ``tenant`` is empty.
    """
    accounts = snapshot.accounts_by_uid.get(uid, {})
    yours = ", ".join(sorted(accounts)) or "none"
    if not tenant:
        raise InvalidInputError(
            Code.TENANT_UNKNOWN,
            "The job names no account, and you have no default one.",
            f"Write --account=ACCOUNT; yours: {yours}.",
        )
    if tenant not in accounts:
        raise InvalidInputError(
            Code.TENANT_UNKNOWN,
            f"tenant: {tenant!r} is no Slurm account of yours.",
            f"Yours: {yours}. If you were added just now, try again in a few seconds.",
        )


_PASS = SubmitAnswer(action="pass")
_NO_DIRECTIVES = JobDirectives()


def _is_managed(partitions: str, managed: frozenset[str]) -> bool:
    """Whether the job might run in a managed partition; it may name several partitions."""
    return partitions in managed or any(name in managed for name in partitions.split(","))


def _unmanaged(request: SubmitRequest, managed: frozenset[str]) -> SubmitAnswer:
    if not is_service(request.directives):
        return _PASS
    return refused(
        Refusal(
            Code.SERVICE,
            f"partition: services do not run in {request.partition!r}.",
            f"They run in: {', '.join(sorted(managed))}.",
        )
    )


@dataclass(frozen=True)
class _Submission:
    """A submission to a managed partition, with the tenant that is charged for it."""

    request: SubmitRequest
    tenant: str
    token: str
    snapshot: Snapshot
    recent: Recent

    def wants(self, gpus: ResolvedRequest, *, may_move: bool, is_slot: bool = False) -> QosRequest:
        # Slurm ignores the case of a QOS name.
        return QosRequest(
            *(self.tenant, gpus.cost_millislices, self.request.qos.lower(), may_move),
            instances=gpus.instances,
            is_slot=is_slot,
            is_whole=gpus.unnamed_millislices > 0,
        )

    def place(self, wants: QosRequest) -> QosChoice:
        return choose_qos(wants, self.snapshot, self.recent)


def _admit(
    request: SubmitRequest, snapshot: Snapshot, token: str, recent: Recent
) -> AdmissionDecision:
    tenant = account_name(request.account or request.default_account)
    submission = _Submission(request, tenant, token, snapshot, recent)
    directives = _NO_DIRECTIVES
    if request.directives:
        directives_of_job = directives_of_script(request.directives)
        if "name" in directives_of_job:
            return _admit_service(spec_of_directives(directives_of_job), submission)
        directives = job_directives(directives_of_job)
    if not asks_for_gpus(request, directives.need_mib):
        return AdmissionDecision(_PASS)
    return _admit_job(directives, submission)


def _admit_job(directives: JobDirectives, submission: _Submission) -> AdmissionDecision:
    request, tenant, snapshot = submission.request, submission.tenant, submission.snapshot
    _require_quota(request.uid, tenant, snapshot)
    standing = _standing(directives, submission)
    job_class = standing or directives.job_class or "normal"
    limits = snapshot.type_limits.get(tenant, {})
    gpus = resolved_request(request, directives.need_mib, limits, snapshot)
    # A job without a script can't be requeued, so it can't move between the two QOS. Loans are of
    # what waiting jobs ask for: nothing is lent for GPUs that come with whole nodes.
    # Nor for shards, since Slurm frees none where a GPU is free that a lender waits for.
    is_whole = gpus.unnamed_millislices > 0
    shares = not gpus.instances.keys().isdisjoint(SHARED)
    may_move = not (request.requeue is False or request.interactive or is_whole or shares)
    wants = submission.wants(gpus, may_move=may_move)
    if standing is not None:
        wants = replace(wants, qos="")
    where = submission.place(wants)
    if standing is not None:
        words = f"QOS {request.qos} stands for class {standing} here; the quota decides the rest."
        where = replace(where, notices=(words, *where.notices))
    _check_limits(gpus, submission, "--time")
    is_flexible = where.is_flexible
    tag = JobTag(
        *(submission.token, tenant),
        job_class=job_class,
        is_flexible=is_flexible,
        whole_millislices=gpus.cost_millislices if is_whole else 0,
    )
    answer = _admitted(tag, where, gpus, submission)
    if request.explain:
        answer = _explained(answer, where, wants, gpus, submission)
    return _decision(answer, tag, gpus)


def _admit_service(spec: ServiceSpec, submission: _Submission) -> AdmissionDecision:
    request, tenant, snapshot = submission.request, submission.tenant, submission.snapshot
    if spec.tenant != tenant:
        raise InvalidInputError(
            Code.SERVICE,
            f"tenant: the service belongs to {spec.tenant!r}, but the job is charged to"
            f" {tenant!r}.",
            f"Write #SBATCH --account={spec.tenant}, or tenant={tenant}.",
        )
    _require_quota(request.uid, tenant, snapshot)
    _check_audience(spec, snapshot)
    _check_class("priority_class", spec.priority_class, tenant, snapshot)
    gpus = _replica(spec, request, snapshot)
    wants = submission.wants(gpus, may_move=False, is_slot=True)
    where = submission.place(wants)
    _check_limits(gpus, submission, "lease_s")
    _check_owner(spec, submission)
    check_generations(spec, snapshot, submission.recent)
    check_place(spec, snapshot, submission.recent)
    _check_array(request.array, spec)
    tag = JobTag(submission.token, tenant, spec.name, spec.priority_class)
    answer = _admitted(tag, where, gpus, submission).model_copy(
        update={"hold": True, "nodes": spec.nodes if spec.nodes > 1 else None}
    )
    if request.explain:
        answer = _explained(answer, where, wants, gpus, submission)
    return _decision(answer, tag, gpus)


def _check_audience(spec: ServiceSpec, snapshot: Snapshot) -> None:
    """Refuse an audience that names what is no tenant: who it should be would not get in.

    Of many tenants the nearest are not looked for: that takes longer than slurmctld may wait.
    """
    tenants = snapshot.quotas.keys()
    named = tenants_of(spec.audience or "") - {EVERY_TENANT}
    if unknown := sorted(named - tenants):
        few = f"Tenants: {', '.join(sorted(tenants))}." if len(tenants) <= _FEW else ""
        raise InvalidInputError(
            Code.TENANT_UNKNOWN,
            f"audience: {unknown[0]!r} is no tenant.",
            f'{few or "A tenant is a Slurm account with a quota."} Write "*" for all tenants.',
        )


def _decision(answer: SubmitAnswer, tag: JobTag, gpus: ResolvedRequest) -> AdmissionDecision:
    return AdmissionDecision(
        *(answer, tag, gpus.cost_millislices, gpus.instances),
        is_type_chosen=gpus.chosen is not None,
    )


def _admitted(
    tag: JobTag, where: QosChoice, gpus: ResolvedRequest, submission: _Submission
) -> SubmitAnswer:
    snapshot, limit_min = submission.snapshot, submission.request.time_limit_min
    limit_s = None if limit_min is None else 60 * limit_min
    terms = PriorityTerms(
        job_class=tag.job_class,
        share=snapshot.shares.get(tag.tenant, 1.0) if snapshot.quotas[tag.tenant] else 0.0,
        smallness=smallness(gpus.cost_millislices, limit_s),
        time_limit_s=limit_s,
    )
    factor = site_factor(terms, snapshot.formula)
    return SubmitAnswer(
        action="admit",
        gres=gpus.texts.get("gres"),
        tres_per_job=gpus.texts.get("tres_per_job"),
        tres_per_socket=gpus.texts.get("tres_per_socket"),
        tres_per_task=gpus.texts.get("tres_per_task"),
        qos=where.qos,
        site_factor=factor,
        tag=tag.text(),
        notice=" ".join((*_chosen_notice(gpus), *where.notices)),
    )


def _explained(
    answer: SubmitAnswer,
    where: QosChoice,
    wants: QosRequest,
    gpus: ResolvedRequest,
    submission: _Submission,
) -> SubmitAnswer:
    why = words(where, wants, submission.snapshot, submission.recent)
    decision = ", ".join((why, *_types(gpus), f"site_factor {answer.site_factor}"))
    return answer.model_copy(update={"decision": decision})


def _chosen_notice(gpus: ResolvedRequest) -> tuple[str, ...]:
    return () if gpus.chosen is None else (f"Its GPU type is {gpus.chosen}.",)


def _types(gpus: ResolvedRequest) -> tuple[str, ...]:
    return () if gpus.chosen is None else (f"GPU type {gpus.chosen}",)


def _standing(directives: JobDirectives, submission: _Submission) -> JobClass | None:
    """Return the class for which the site's QOS that the user named stands.

    None if the script names a class itself, or the QOS stands for none. Slurm never sees the named
    QOS, because Slicewise replaces it by its own. So the user's right to name it is checked here. A
    user whose accounts are not known, such as while slurmdbd is away, has no such right.
    """
    request, tenant, snapshot = submission.request, submission.tenant, submission.snapshot
    if directives.job_class is not None:
        _check_class("class", directives.job_class, tenant, snapshot)
        return None
    qos = request.qos.lower()
    stands_for = snapshot.rules.class_of_qos.get(qos)
    accounts = snapshot.accounts_by_uid.get(request.uid)
    if stands_for is None or request.uid == 0:
        return stands_for
    if accounts is None:
        return None
    if qos not in accounts[tenant]:
        raise InvalidInputError(
            Code.QOS,
            f"Slurm does not list QOS {qos} as one that you may use in account {tenant!r}.",
            "Leave out --qos. Yours: sacctmgr show assoc user=$USER format=account,qos",
        )
    return stands_for


def _check_class(key: str, job_class: JobClass, tenant: str, snapshot: Snapshot) -> None:
    if job_class == "high" and tenant not in snapshot.rules.high_class_for:
        raise InvalidInputError(
            Code.CLASS_FORBIDDEN,
            f"{key}: the jobs of {tenant!r} may not be of class high.",
            f"Write {key}=normal; the operator lists tenants in [priority] high_class_for.",
        )


def _require_quota(uid: int, tenant: str, snapshot: Snapshot) -> None:
    # Slurm itself checks users whose accounts are not known here; root also submits for others.
    if not tenant or (uid != 0 and uid in snapshot.accounts_by_uid):
        check_membership(uid, tenant, snapshot)
    if tenant in snapshot.quotas:
        return
    raise InvalidInputError(
        Code.QUOTA_NONE,
        f"tenant: {tenant!r} has no quota, so it may not use GPUs.",
        f"Ask the operator for: slicewise tenant-quota set {tenant} --nominal N",
    )


def _replica(spec: ServiceSpec, request: SubmitRequest, snapshot: Snapshot) -> ResolvedRequest:
    """Return the GPUs of a service's replica, checked against what the script asks for."""
    gpu = gpu_type(spec.profile or _cheapest(spec, request, snapshot), snapshot)
    shape = replace(spec.replica_shape, gres_type=gpu.name)
    if request.exclusive or (request.min_nodes or shape.nodes) != shape.nodes:
        raise InvalidInputError(
            Code.SERVICE,
            "The script asks for whole nodes or another number of nodes, but a replica has "
            f"{shape.gres} on {shape.nodes} node{'s' * (shape.nodes > 1)}.",
            f"Leave out --exclusive, and write #SBATCH --nodes={shape.nodes}.",
        )
    gpus = gpus_of(request, snapshot)
    if gpus and gpus != (shape.request,):
        raise InvalidInputError(
            Code.SERVICE,
            f"The script asks for {', '.join(map(gres_text, gpus))}, a replica has "
            f"{gres_text(shape.request)}.",
            f"Write #SBATCH --gres={shape.gres}, or leave it out.",
        )
    cost = shape.cost_millislices({gpu.name: gpu.cost_millislices})
    return ResolvedRequest({gpu.name: shape.request.count}, cost, None, {"gres": shape.gres})


def _cheapest(spec: ServiceSpec, request: SubmitRequest, snapshot: Snapshot) -> str:
    need_gib, shape = spec.need_gib or 0.0, spec.replica_shape
    best = choose_type(
        (candidate for candidate in snapshot.gpu_types.values() if _has_room(candidate, shape)),
        count=shape.request.count,
        need_mib=ceil(need_gib * 1024),
        limits=snapshot.type_limits.get(spec.tenant, {}),
        partitions=snapshot.partitions.intersection(request.partition.split(",")),
    )
    if best is None:
        many = "" if shape.request.count == 1 else f" on each of {shape.request.count} GPUs"
        raise too_large(f"need_gib: {need_gib:g} GiB{many}", snapshot)
    return best.name


def _has_room(candidate: GpuType, shape: ReplicaShape) -> bool:
    return not candidate.on_nodes or shape.fits_on(candidate.on_nodes)


def _check_limits(
    gpus: ResolvedRequest, submission: _Submission, key: Literal["--time", "lease_s"]
) -> None:
    """Check one task against limits of types and the budget; ``key`` sets its time limit."""
    tenant, snapshot = submission.tenant, submission.snapshot
    limits = snapshot.type_limits.get(tenant, {})
    for gres_type, count in gpus.instances.items():
        if count > limits.get(gres_type, count):
            raise InvalidInputError(
                Code.QUOTA_EXCEEDED,
                f"One task has {count} instances of {gres_type}, {tenant!r} may have "
                f"{limits[gres_type]}: it could never start.",
                "Ask for fewer or another type, or the operator for a higher limit.",
            )
    budget, time_limit_min = snapshot.budgets.get(tenant), submission.request.time_limit_min
    if budget is None or time_limit_min is None:
        return
    cost_a_minute = gpus.cost_millislices * 60
    # Slurm would never start such a task.
    if cost_a_minute * time_limit_min > budget:
        raise _beyond_budget(tenant, gpus.cost_millislices, time_limit_min, budget, key)


def _beyond_budget(
    tenant: str, cost: int, time_limit_min: int, budget: int, key: Literal["--time", "lease_s"]
) -> InvalidInputError:
    most_min = budget // (cost * 60)
    what, value = "task", f"{most_min}"
    if key == "lease_s":
        what, value = "replica", f"{most_min * 60}"
    shorter = f"Write {key}={value} or less" if most_min else "Ask for less"
    return InvalidInputError(
        Code.BUDGET_EXCEEDED,
        f"{key}: one {what} of {slices_words(cost)} for {time_limit_min} min could use up "
        f"{_hours(cost * time_limit_min * 60)} slice-hours, and {tenant!r} gets at most "
        f"{_hours(budget)} in a period: it could never start.",
        f"{shorter}, or ask the operator for a larger budget.",
    )


def _hours(millislice_s: int) -> str:
    return f"{millislice_s / 3_600_000:.2f}"


def _check_owner(spec: ServiceSpec, submission: _Submission) -> None:
    """Refuse a name that another user's service has; a user's own service gets a new generation."""
    uid, recent = submission.request.uid, submission.recent.services
    living = submission.snapshot.services.get((spec.tenant, spec.name))
    others = {
        other_uid
        for tenant, name, other_uid in recent
        if (tenant, name) == (spec.tenant, spec.name)
    }
    if (living is None or living.uid == uid) and others <= {uid}:
        return
    job = f"job {living.array_job_id}" if living else "just submitted"
    raise InvalidInputError(
        Code.SERVICE_EXISTS,
        f"name: {spec.tenant!r} already has a service {spec.name!r} of another user: {job}.",
        "Choose another name.",
    )


def _check_array(array: str, spec: ServiceSpec) -> None:
    wanted = f"0-{spec.max_replicas - 1}"
    allowed = {wanted, "0"} if spec.max_replicas == 1 else {wanted}
    if array not in allowed:
        raise InvalidInputError(
            Code.SERVICE,
            f"max_replicas: {spec.max_replicas} replicas need the array {wanted}, "
            f"not {array or 'no array'!s}.",
            f"Write #SBATCH --array={wanted}.",
        )
