"""A stand-in for a service as the daemon shows it."""

from typing import Any

from cluster.rpc.messages import ServiceView, SlotView

_FIELDS: dict[str, Any] = {
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


def a_service(**changes: Any) -> ServiceView:
    """One generation of a service without slots, but for these fields."""
    return ServiceView(**{**_FIELDS, **changes})


def slots_in(*states: str) -> tuple[SlotView, ...]:
    """Slots in these states, of which nothing else is known."""
    return tuple(
        SlotView.model_validate({"index": index, "state": state})
        for index, state in enumerate(states)
    )
