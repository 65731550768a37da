"""A step of the story, with a gateway that does not answer the observer."""

from collections.abc import Mapping
from io import StringIO
from typing import Any

import pytest
from rich.console import Console

from slicewise.cluster.language.errors import UnreachableError
from slicewise.sandbox.demo.live import Display
from slicewise.sandbox.demo.record import Replicas, RequestRecord, Sample, ServiceState
from slicewise.sandbox.demo.scenario import CHAT, VISION
from slicewise.sandbox.demo.story import Story
from slicewise.sandbox.demo.trace import Arrival


class Silent:
    async def sample(self) -> tuple[ServiceState, ...]:
        raise UnreachableError("SW-GATEWAY-DOWN", "HAProxy does not answer.")


class Load:
    elapsed_s = 7.0
    records: tuple[RequestRecord, ...] = ()

    async def request(self, arrival: Arrival) -> RequestRecord:
        return RequestRecord(arrival.service, 7.0, 7.0, 1.0)


def story(found: Mapping[str, Replicas]) -> Story:
    unused: Any = None
    load: Any = Load()
    display = Display(Console(file=StringIO(), force_terminal=False))
    made = Story(load, Silent(), unused, display, None, unused, {}, 0.0)
    made._latest = tuple(
        Sample(6.5, ServiceState(service, 0, replicas, 0, 0), 0, None, None)
        for service, replicas in found.items()
    )
    return made


@pytest.mark.parametrize("ready", [0, 2])
async def test_a_wake_knows_the_replicas_before_though_nothing_answers_just_then(
    ready: int,
) -> None:
    told = story({VISION.service: Replicas(ready=ready), CHAT.service: Replicas(ready=1)})
    await told._wake((VISION,))
    (wake,) = told._wakes
    assert (wake.service, wake.replicas_before) == (VISION.service, ready)
    assert told.costing(CHAT.service) == 1
