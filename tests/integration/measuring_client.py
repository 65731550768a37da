"""Measures a model as perf_analyzer does, with the official clients, and counts what fails.

Some clients ask at the same time, each again as soon as it is answered. One window after another is
measured until three in a row answer about as much; before the first one the model's readiness and
configuration are asked for, before and after each one its own statistics. What requests spent in
the queue and in the model follows from two of those.
"""

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import count
from typing import Any

import numpy as np
import tritonclient.grpc as triton
import tritonclient.http as triton_http
from waiting import until

WINDOW_S = 0.3
"""At least: on a machine that stalls a window lasts until something is answered in it."""
MOST_WINDOWS = 5
_STABLE = 0.1
"""By how much three windows in a row may differ from their mean."""

_IDS = count(1)


@dataclass(frozen=True)
class Statistics:
    """What a model has counted: requests, batches, and how long they took in all."""

    inferences: int
    executions: int
    success_ns: int
    queue_ns: int
    compute_ns: int

    def since(self, before: "Statistics") -> "Statistics":
        """What was counted between the two."""
        return Statistics(
            self.inferences - before.inferences,
            self.executions - before.executions,
            self.success_ns - before.success_ns,
            self.queue_ns - before.queue_ns,
            self.compute_ns - before.compute_ns,
        )


@dataclass
class Measured:
    """What clients of one protocol were answered.

    Attributes:
        answers: how many there were, and how long their clients waited for them in all.
        windows: how many were answered in each.
        counted: what the statistics said, before the first window and after each one.
    """

    answers: int = 0
    waited_ns: int = 0
    failed: list[str] = field(default_factory=list)
    windows: list[int] = field(default_factory=list)
    counted: list[Statistics] = field(default_factory=list)

    @property
    def is_stable(self) -> bool:
        """Whether the last windows answered about as much."""
        last = self.windows[-3:]
        mean = sum(last) / 3
        return len(last) == 3 and all(abs(one - mean) <= _STABLE * mean for one in last)


class Client:
    """A client of the model ``sum``, by HTTP or gRPC: each request is a sequence of its own."""

    def __init__(self, address: str, service: str, *, by_grpc: bool) -> None:
        self._module = triton if by_grpc else triton_http
        self._how = {"headers": {"slicewise-service": service}} if by_grpc else {}
        where = address if by_grpc else f"{address}/{service}"
        self._client = self._module.InferenceServerClient(where)
        self._tensor = self._module.InferInput("IN", [1, 1], "INT32")
        self._tensor.set_data_from_numpy(np.array([[3]], dtype=np.int32))
        self._by_grpc = by_grpc

    def infer(self) -> int:
        ends = {"sequence_id": next(_IDS), "sequence_start": True, "sequence_end": True}
        answer = self._client.infer("sum", [self._tensor], **ends, **self._how)
        return int(answer.as_numpy("SUM").flat[0])

    def is_ready(self) -> bool:
        return bool(self._client.is_model_ready("sum", "1", **self._how))

    def config(self) -> dict[str, Any]:
        """The model's configuration, as Triton's JSON has it."""
        how = {"as_json": True, **self._how} if self._by_grpc else {}
        said: dict[str, Any] = self._client.get_model_config("sum", "1", **how)
        return said["config"] if self._by_grpc else said

    def statistics(self) -> Statistics:
        how = {"as_json": True, **self._how} if self._by_grpc else {}
        (said,) = self._client.get_inference_statistics("sum", "1", **how)["model_stats"]
        times = said["inference_stats"]
        parts = ("compute_input", "compute_infer", "compute_output")
        # Zeros are left out in protobuf's JSON, and its 64-bit numbers are texts.
        return Statistics(
            int(times["success"].get("count", 0)),
            int(said.get("execution_count", 0)),
            int(times["success"].get("ns", 0)),
            int(times["queue"].get("ns", 0)),
            sum(int(times[part].get("ns", 0)) for part in parts),
        )

    def close(self) -> None:
        self._client.close()


@contextmanager
def asking(make: Callable[[], Client], clients: int) -> Iterator[Measured]:
    """So many clients ask while this lasts; at its end all have their last answer."""
    measured, ended, lock = Measured(), threading.Event(), threading.Lock()

    def ask() -> None:
        client = make()
        while not ended.is_set():
            sent_ns = time.monotonic_ns()
            try:
                error = "" if (found := client.infer()) == 3 else f"answered {found}"
            except Exception as failure:  # noqa: BLE001 -- whatever it is, the request failed
                error = repr(failure)
            with lock:
                measured.answers += 1
                measured.waited_ns += time.monotonic_ns() - sent_ns
                measured.failed += [error] if error else []
        client.close()

    threads = [threading.Thread(target=ask) for _ in range(clients)]
    for thread in threads:
        thread.start()
    try:
        yield measured
    finally:
        ended.set()
        for thread in threads:
            thread.join()


def measure(measured: Measured, client: Client, goes_on: Callable[[], bool] | None = None) -> None:
    """Measure windows until they are stable, or for as long as it ``goes_on``."""
    assert client.is_ready()
    assert client.config()["max_batch_size"] == 1
    measured.counted.append(client.statistics())
    while True:
        before = measured.answers
        time.sleep(WINDOW_S)
        until(lambda before=before: measured.answers > before)
        measured.windows.append(measured.answers - before)
        measured.counted.append(client.statistics())
        if goes_on is not None:
            if not goes_on():
                return
        elif measured.is_stable or len(measured.windows) >= MOST_WINDOWS:
            return
