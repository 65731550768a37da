"""Services as the daemon shows them, what the launcher reports of them, and their generations."""

from typing import Any

from slicewise.cluster.rpc.messages import ServiceReport, ServiceView, SlotView, TenantView
from slicewise.cluster.rpc.read_messages import GenerationRecord


def a_service(**changes: Any) -> ServiceView:
    """One generation of a service without slots, but for these fields."""
    fields: dict[str, Any] = {
        "array_job_id": 814,
        "tenant": "vision",
        "name": "chat",
        "user": "alice",
        "submit_s": 1,
        "directives": {},
        "profile": "1g.10gb",
        "cost_millislices": 1000,
        "slots": (),
    }
    return ServiceView(**{**fields, **changes})


def a_slot(index: int = 0, state: str = "held", **changes: Any) -> SlotView:
    """A slot of which nothing else is known, but for these fields."""
    return SlotView.model_validate({"index": index, "state": state, **changes})


def slots_in(*states: str) -> tuple[SlotView, ...]:
    """Slots in these states, of which nothing else is known."""
    return tuple(a_slot(index, state) for index, state in enumerate(states))


def a_running_slot(index: int = 0, **changes: Any) -> SlotView:
    """A slot whose replica has told its address and runs since second 50."""
    fields: dict[str, Any] = {
        "job_id": 900 + index,
        "address": "10.0.0.1",
        "ports": (21001 + index, 22001 + index, 23001 + index),
        "certificate": "CCCC",
        "start_s": 50,
    }
    return a_slot(index, "running", **(fields | changes))


def a_report(**changes: Any) -> ServiceReport:
    """The launcher's report of a service without requests that is to have one replica."""
    fields: dict[str, Any] = {
        "tenant": "vision",
        "name": "chat",
        "in_flight": 0,
        "queued": 0,
        "held": 0,
        "rate_per_s": 0.0,
        "desired_replicas": 1,
        "reason": "",
    }
    return ServiceReport(**{**fields, **changes})


def a_generation(array_job_id: int = 814, **changes: Any) -> GenerationRecord:
    """What alice submitted as a generation of the service; it says nothing of the service."""
    fields: dict[str, Any] = {
        "submitted_s": 1,
        "tenant": "vision",
        "name": "chat",
        "author": "alice",
        "directives": {},
    }
    return GenerationRecord(array_job_id=array_job_id, **{**fields, **changes})


def a_tenant_view(in_use_millislices: int = 0, **changes: Any) -> TenantView:
    """A tenant of four slices; its own jobs hold what is in use."""
    fields: dict[str, Any] = {
        "name": "vision",
        "nominal_millislices": 4000,
        "own_in_use_millislices": in_use_millislices,
    }
    return TenantView(in_use_millislices=in_use_millislices, **{**fields, **changes})
