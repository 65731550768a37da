"""Tests the autoscaler's inputs: what a service's script and its owner's orders ask for."""

import pytest

from slicewise.cluster.language.service import ServiceSpec
from slicewise.cluster.rpc.order_messages import ServiceOrder
from slicewise.launcher.rules.autoscale.types import Scaling
from slicewise.launcher.rules.engines.triton import Triton
from slicewise.launcher.rules.turn.scaling_inputs import scaling


def asked(order: ServiceOrder | None = None, most: int = 8, **said: object) -> Scaling:
    known = {"name": "chat", "tenant": "vision", "model_repository": "/models", "model": "m"}
    script = {"profile": "1g.10gb", "min_replicas": 1, "max_replicas": 4}
    spec = ServiceSpec.model_validate({**known, **script, **said})
    return scaling(spec, order or ServiceOrder(), most, Triton())


@pytest.mark.parametrize(
    ("said", "max_queue_s", "p95_s"),
    [({}, None, None), ({"max_queue_s": 0.5}, 0.5, None), ({"p95_ms": 800}, None, 0.8)],
)
def test_objectives_are_in_seconds(
    said: dict[str, float], max_queue_s: float | None, p95_s: float | None
) -> None:
    found = asked(**said)
    assert (found.max_queue_s, found.p95_s) == (max_queue_s, p95_s)


@pytest.mark.parametrize(
    ("order", "most", "bounds"),
    [
        (ServiceOrder(), 8, (1, 4)),
        (ServiceOrder(min_replicas=2, max_replicas=3), 8, (2, 3)),
        (ServiceOrder(min_replicas=0, max_replicas=0), 8, (0, 0)),
        (ServiceOrder(min_replicas=3, max_replicas=6), 2, (2, 2)),
    ],
)
def test_orders_go_before_the_script_as_far_as_slots_and_gateway_carry(
    order: ServiceOrder, most: int, bounds: tuple[int, int]
) -> None:
    found = asked(order, most)
    assert (found.min_replicas, found.max_replicas) == bounds
