"""Measures a model as perf_analyzer does, with the official clients, and counts what fails.

Some clients ask at the same time, each again as soon as it is answered. One window after another is
measured until three in a row answer about as much; before and after each one the model's own
statistics are asked for.
"""

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import count

import numpy as np
import tritonclient.grpc as triton
import tritonclient.http as triton_http

WINDOW_S = 0.4
MOST_WINDOWS = 6
_STABLE = 0.3
"""By how much three windows in a row may differ from their mean."""

_IDS = count(1)


@dataclass
class Measured:
    """What clients of one protocol were answered.

    Attributes:
        answers: in the order of ending.
        windows: how many were answered in each.
        inferences: what the statistics said, before the first window and after each one.
    """

    answers: int = 0
    failed: list[str] = field(default_factory=list)
    windows: list[int] = field(default_factory=list)
    inferences: list[int] = field(default_factory=list)

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

    def inferences(self) -> int:
        said = self._client.get_inference_statistics("sum", "1", **self._how)
        if self._by_grpc:
            return int(said.model_stats[0].inference_stats.success.count)
        return int(said["model_stats"][0]["inference_stats"]["success"]["count"])

    def close(self) -> None:
        self._client.close()


@contextmanager
def asking(make: Callable[[], Client], clients: int) -> Iterator[Measured]:
    """So many clients ask while this lasts; at its end all have their last answer."""
    measured, ended, lock = Measured(), threading.Event(), threading.Lock()

    def ask() -> None:
        client = make()
        while not ended.is_set():
            try:
                error = "" if (found := client.infer()) == 3 else f"answered {found}"
            except Exception as failure:  # noqa: BLE001 -- whatever it is, the request failed
                error = repr(failure)
            with lock:
                measured.answers += 1
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
    measured.inferences.append(client.inferences())
    while True:
        before = measured.answers
        time.sleep(WINDOW_S)
        measured.windows.append(measured.answers - before)
        measured.inferences.append(client.inferences())
        if goes_on is not None:
            if not goes_on():
                return
        elif measured.is_stable or len(measured.windows) >= MOST_WINDOWS:
            return
