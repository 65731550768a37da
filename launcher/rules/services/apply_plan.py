"""Decides what applying a service's file would do: a new service, a new generation, or nothing."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from decimal import Decimal
from typing import Annotated, Literal

from pydantic import computed_field

from slicewise.cluster.language.codes import Code
from slicewise.cluster.language.documents import HIDDEN, TextOrNull
from slicewise.cluster.language.errors import InvalidInputError
from slicewise.cluster.language.replica_shape import ReplicaShape
from slicewise.cluster.language.service import AUTO, ServiceSpec, can_follow, values_of
from slicewise.cluster.language.units import Millislices, slices_text, slices_words
from slicewise.cluster.rpc.messages import ServiceView, TenantView, ViewAnswer
from slicewise.launcher.rules.engines.model_files import ModelNeeds

SEQUENCES = 64
"""Places of a replica whose model keeps the state of sequences."""

Action = Literal["create", "roll over", "nothing"]


@dataclass(frozen=True)
class KeyChange:
    """A key that differs: its value in the newest generation and in the file; None is no value."""

    key: str
    before: str | None
    after: str | None


@dataclass(frozen=True)
class ReplicaCost:
    """What a replica has, and what it costs while it runs.

    Attributes:
        gpu_model: of the GPUs that have such instances; None for parts of any.
        slice_hour_price, slice_day_price: of a slice, now and in the 24 hours from now on; None if
            the site has no tariff.
        currency: of the prices.
    """

    shape: Annotated[ReplicaShape, HIDDEN]
    """Its GPU instances."""
    gpu_model: str | None
    cost_millislices: Millislices
    slice_hour_price: Annotated[Decimal | None, HIDDEN] = None
    slice_day_price: Annotated[Decimal | None, HIDDEN] = None
    currency: TextOrNull = ""

    @computed_field
    @property
    def gres_type(self) -> str:
        """Of its GPUs; "" is Slurm's choice."""
        return self.shape.gres_type or ""

    @computed_field
    @property
    def gpus(self) -> int:
        """Number of its GPU instances."""
        return self.shape.request.count

    @computed_field
    @property
    def hour_price(self) -> str | None:
        """Price of its hour now, a decimal number as text; None if the site has no tariff."""
        price = self.price(self.slice_hour_price)
        return None if price is None else f"{price:f}"

    @computed_field
    @property
    def day_price(self) -> str | None:
        """Price of its next 24 hours, likewise."""
        price = self.price(self.slice_day_price)
        return None if price is None else f"{price:f}"

    def price(self, of_slice: Decimal | None, replicas: int = 1) -> Decimal | None:
        """Return the price of as many replicas by that of a slice; None if that is not known."""
        return None if of_slice is None else of_slice * self.cost_millislices * replicas / 1000


@dataclass(frozen=True)
class ApplyPlan:
    """What ``apply`` would do.

    Attributes:
        array_job_id: the newest generation's, which is replaced; None if there is none.
        notes: what its user should know besides, such as quota for the surge.
        model: what the model needs; None if its repository was not looked at.
        living: the array jobs of all services that run now, of this name or others.
        replica: what each of its replicas costs; None if their GPU type is open.
    """

    action: Action
    array_job_id: int | None = None
    changes: tuple[KeyChange, ...] = ()
    notes: tuple[str, ...] = ()
    model: ModelNeeds | None = None
    living: Annotated[frozenset[int], HIDDEN] = frozenset()
    replica: ReplicaCost | None = None


_LOAD = ("replicas that run load and unload adapters; none of them is replaced",)
_STAY = ("only the audience changes: replicas that run go on",)


def generations_of(views: Sequence[ServiceView], tenant: str, name: str) -> tuple[ServiceView, ...]:
    """Return the living job arrays of one service, the newest first."""
    services = (view for view in views if (view.tenant, view.name) == (tenant, name))
    return tuple(sorted(services, key=lambda view: -view.array_job_id))


def plan_apply(
    spec: ServiceSpec, view: ViewAnswer, cost: Millislices, *, force: bool = False
) -> ApplyPlan:
    """Compare the file with the newest generation; ``cost`` is a replica's.

    ``force`` rolls over though nothing has changed, for example after an update of the engine or of
    Slicewise; lost slots do so, too. Raises InvalidInputError (SW-SERVICE-ENDING) while the service
    is being deleted.
    """
    living = generations_of(view.services, spec.tenant, spec.name)
    tenant = next((tenant for tenant in view.tenants if tenant.name == spec.tenant), None)
    quota = _quota_note(tenant, cost, spec)
    if not living:
        return ApplyPlan("create", notes=quota)
    newest = living[0]
    bounds = (*quota, *_order_note(newest))
    if newest.order.delete_s is not None:
        raise InvalidInputError(
            Code.SERVICE_ENDING,
            f"{spec.tenant}/{spec.name} is being deleted; requests in flight finish.",
            f"Wait until it has ended (slicewise service delete {spec.name} does), then apply.",
        )
    changes = changed_keys(newest.directives, spec)
    lost = _lost_note(newest)
    if not (changes or lost or force):
        return ApplyPlan("nothing", newest.array_job_id, (), bounds)
    running = [view for view in living if view is newest or _under_way([view])]
    stay = not force and all(can_follow(view.directives, spec.values()) for view in running)
    surge = _surge_note(tenant, cost, _under_way(living))
    if stay:
        surge = _STAY if {change.key for change in changes} == {"audience"} else _LOAD
    notes = (*lost, *surge, *bounds)
    return ApplyPlan("roll over", newest.array_job_id, changes, notes)


def with_needs(plan: ApplyPlan, spec: ServiceSpec, needs: ModelNeeds) -> ApplyPlan:
    """Return the plan with what the model needs, and what its user should know of that."""
    notes = (*needs.notes, *_sequences_note(spec, needs), *plan.notes)
    return replace(plan, model=needs, notes=notes)


def _sequences_note(spec: ServiceSpec, needs: ModelNeeds) -> tuple[str, ...]:
    """Say if sequences may block each other.

    One that begins waits in the replica until another one ends, and keeps a place of the gateway's
    meanwhile: if it has the last, the next request of that other one can't come through.
    """
    keeps_state = needs.has_sequences or spec.session_affinity == "sequence"
    if not keeps_state or (spec.concurrency != AUTO and spec.concurrency >= SEQUENCES):
        return ()
    blocks = "as many sequences that wait for a place in the model keep those that have one"
    more = f"write more than there are sequences at one time, such as {SEQUENCES}"
    return (f"concurrency {spec.concurrency}: {blocks} from going on; {more}",)


def changed_keys(before: Mapping[str, str], spec: ServiceSpec) -> tuple[KeyChange, ...]:
    """Return the keys that differ, in the schema's order.

    A key that was left out before counts with its default; what the files say, a digest and the
    memory that the model takes, counts where both are known.
    """
    return _changes(values_of(before), spec.values())


def changes_between(before: Mapping[str, str], after: Mapping[str, str]) -> tuple[KeyChange, ...]:
    """Return the same for two generations that have been submitted."""
    return _changes(values_of(before), values_of(after))


def _changes(old: Mapping[str, str], new: Mapping[str, str]) -> tuple[KeyChange, ...]:
    unknown = {"model_digest", "model_mib"} - (old.keys() & new.keys())
    keys = (*new, *(key for key in old if key not in new))
    return tuple(
        KeyChange(key, old.get(key), new.get(key))
        for key in keys
        if key not in unknown and old.get(key) != new.get(key)
    )


def _lost_note(newest: ServiceView) -> tuple[str, ...]:
    lost = sum(slot.state == "gone" for slot in newest.slots)
    return (
        f"{lost} of its {len(newest.slots)} slots are lost; a new array has all of them",
    ) * bool(lost)


def _under_way(living: Sequence[ServiceView]) -> int:
    under_way = {"released", "starting", "running"}
    return sum(slot.state in under_way for view in living for slot in view.slots)


def _surge_note(tenant: TenantView | None, cost: int, replicas: int) -> tuple[str, ...]:
    """Say how new replicas fit into the quota; without room, old ones make room one at a time."""
    if tenant is None or not replicas or not cost:
        return ()
    limit = tenant.effective_limit_millislices
    room = max(0, tenant.room_millislices) // cost
    held = (
        f"{tenant.name} holds {slices_text(tenant.in_use_millislices)} of {slices_words(limit)}, "
        f"a new replica needs {slices_text(cost)}"
    )
    if room >= replicas:
        return (f"quota: {held}: new replicas start beside the old ones",)
    if room:
        return (f"quota: {held}: at most {room} at a time start beside the old ones",)
    gap = "; requests wait at the gateway meanwhile" if replicas == 1 else ""
    return (f"quota: {held}: old replicas are drained one at a time to make room{gap}",)


def _quota_note(tenant: TenantView | None, cost: int, spec: ServiceSpec) -> tuple[str, ...]:
    """Say if quota allows fewer replicas than the file asks for, even without other jobs."""
    if tenant is None or not cost:
        return ()
    most = tenant.effective_limit_millislices // cost
    if most >= spec.max_replicas:
        return ()
    key, asked = "max_replicas", spec.max_replicas
    if most < spec.min_replicas:
        key, asked = "min_replicas", spec.min_replicas
    limit = slices_words(tenant.effective_limit_millislices)
    holds = f"{tenant.name}'s limit is {limit} now, loans included"
    need = f"{most or 'none'} of {key} {asked} can run, {slices_words(cost)} each"
    back = ""
    if tenant.effective_limit_millislices < tenant.nominal_millislices:
        nominal = slices_text(tenant.nominal_millislices)
        back = f"; what it lends of its nominal {nominal} comes back when its own requests wait"
    return (f"quota: {holds}: {need}{back}",)


def _order_note(newest: ServiceView) -> tuple[str, ...]:
    order = newest.order
    if order.min_replicas is None or order.max_replicas is None:
        return ()
    bounds = f"{order.min_replicas} to {order.max_replicas}"
    words = f"it stays scaled to {bounds}, not to the bounds of the file, until"
    return (f"{words}: slicewise service scale {newest.name} --reset",)
