"""Measures what a forecast is worth that knows how long requests are, by tokens or otherwise.

The launcher's decision reckons with the mean time of a request, by Little's law. Here it is told
another one, on real traces and on such whose lengths change every ten minutes:

- ``one_memory``: by Little's law, of the last 500 answers only;
- ``tokens``: tokens times what each costs, which is told, too. Prompts are counted when a replica
  begins them, as vLLM does, and answers when they end, as SGLang and llama.cpp do;
- ``known``: the seconds of the requests that have come. No replica can know them, so this shows
  what tokens could be worth at most.
"""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from heapq import heappop, heappush
from typing import Any

import numpy as np

from benchmarks import reporting
from benchmarks.machine import machine
from slicewise.launcher.rules.autoscale.service_time import WorkDone, learn_work
from slicewise.simulation.rules.services.request_queue import RunningReplica, ServiceRequests
from studies.autoscale import traces
from studies.autoscale.curves import ATTAINMENTS, slice_hours_at
from studies.autoscale.policy import Seen
from studies.autoscale.slicewise import Slicewise
from studies.autoscale.workload import Floats, Workload
from studies.autoscale.world import replay
from studies.command_line import traces_folder

SEED = 20_261_121
AIMS = (0.8, 0.9, 0.94, 0.96, 0.98, 0.99, 0.996, 0.999, 0.9999)
QUICK_AIMS = (0.9, 0.98)
EACH_S = 600.0
_CERTAIN = 1e9
"""Answers that stand for what is told: so many that what the policy sees itself changes nothing."""


class TokenRequests(ServiceRequests):
    """Also says how much work was counted.

    Attributes:
        until_s: seconds of all requests before each, and of all of them.
    """

    def __init__(self, workload: Workload, seconds: Floats) -> None:
        """``seconds``: of each request, those of its prompt and of its answer."""
        super().__init__(
            workload.arrivals_s.tolist(), workload.service_s.tolist(), workload.concurrency
        )
        self.until_s: list[float] = [0.0, *np.cumsum(workload.service_s).tolist()]
        self._seconds: list[list[float]] = seconds.tolist()
        self._counted_s = 0.0
        self._answers: list[tuple[float, float]] = []

    def _serve(self, request: int, replica: RunningReplica, at_s: float) -> None:
        prompt_s, answer_s = self._seconds[request]
        self._counted_s += prompt_s
        heappush(self._answers, (at_s + prompt_s + answer_s, answer_s))
        super()._serve(request, replica, at_s)

    def count_s(self) -> float:
        """Seconds of prompts that were begun and of answers that have ended until now."""
        while self._answers and self._answers[0][0] <= self.now_s:
            self._counted_s += heappop(self._answers)[1]
        return self._counted_s


Told = Callable[[TokenRequests, Seen], tuple[float, int]]
"""Returns how much work was counted since the replay began, and of how many requests."""


class ToldWork(Slicewise):
    """The launcher's decision, but it is told how long requests take."""

    def __init__(self, requests: TokenRequests, target: float, told: Told) -> None:
        super().__init__(requests.concurrency, target)
        self._requests, self._told = requests, told
        self._before, self._work = (0.0, 0), WorkDone()

    def wanted(self, seen: Seen) -> int:
        """Decide with the mean of what was told."""
        now = self._told(self._requests, seen)
        more_s, more = now[0] - self._before[0], now[1] - self._before[1]
        self._before, self._work = now, learn_work(self._work, more_s, more)
        if self._memory is not None:
            self._memory = replace(self._memory, work=_certain(self._work.service_s))
        return super().wanted(seen)


class OneMemory(Slicewise):
    """The launcher's decision without the memory of the last few answers."""

    def wanted(self, seen: Seen) -> int:
        """Decide as if there were too few of them."""
        if self._memory is not None:
            work = replace(self._memory.work, lately_busy_s=0.0, lately_answers=0.0)
            self._memory = replace(self._memory, work=work)
        return super().wanted(seen)


def _certain(service_s: float) -> WorkDone:
    return WorkDone(*(service_s * _CERTAIN, _CERTAIN) * 2)


def counted(requests: TokenRequests, seen: Seen) -> tuple[float, int]:
    """What engines count."""
    return requests.count_s(), seen.answered


def known(requests: TokenRequests, seen: Seen) -> tuple[float, int]:
    """What has come."""
    return requests.until_s[seen.arrived], seen.arrived


POLICIES: Mapping[str, Callable[[TokenRequests, float], Slicewise]] = {
    "slicewise": lambda requests, aim: Slicewise(requests.concurrency, aim),
    "one_memory": lambda requests, aim: OneMemory(requests.concurrency, aim),
    "tokens": lambda requests, aim: ToldWork(requests, aim, counted),
    "known": lambda requests, aim: ToldWork(requests, aim, known),
}


def as_they_are(_: Floats, tokens: Floats) -> Floats:
    """Leave the lengths."""
    return tokens


def turns(column: int, low: float, high: float) -> Callable[[Floats, Floats], Floats]:
    """Let the mean length of prompts (0) or answers (1) be now the one, now the other."""

    def change(arrivals: Floats, tokens: Floats) -> Floats:
        found = tokens.astype(float)
        means = np.where((arrivals // EACH_S).astype(int) % 2, high, low)
        found[:, column] = np.maximum(1, means * found[:, column] / found[:, column].mean())
        return found

    return change


CASES: Mapping[str, tuple[str, Callable[[Floats, Floats], Floats]]] = {
    "azure": ("azure", as_they_are),
    "mooncake": ("mooncake", as_they_are),
    "azure, answers 100 and 2,000": ("azure", turns(1, 100, 2_000)),
    "mooncake, answers 100 and 2,000": ("mooncake", turns(1, 100, 2_000)),
    "azure, prompts 1,000 and 40,000": ("azure", turns(0, 1_000, 40_000)),
}


def point(workload: Workload, seconds: Floats, policy: str, aim: float) -> Mapping[str, float]:
    """Replay once."""
    requests = TokenRequests(workload, seconds)
    decides = POLICIES[policy](requests, aim)
    outcome = replay(workload, decides, lambda: decides.in_time, requests)
    return {
        "target": aim,
        "attainment": round(outcome.attainment, 6),
        "slice_hours": round(outcome.slice_s / 3600, 4),
    }


def measure(is_quick: bool) -> Mapping[str, Any]:
    """Replay all cases with all policies."""
    folder = traces_folder()
    found: dict[str, Any] = {}
    for case, (name, change) in CASES.items():
        workload, seconds = traces.with_tokens(name, folder, SEED, change)
        points = {
            policy: [
                point(workload, seconds, policy, aim) for aim in (QUICK_AIMS if is_quick else AIMS)
            ]
            for policy in POLICIES
        }
        found[case] = {"ratio": ratios(points), "points": points}
    return {"cases": found, "seed": SEED, "machine": machine()}


def ratios(
    points: Mapping[str, list[Mapping[str, float]]],
) -> Mapping[str, Mapping[str, float | None]]:
    """Slice-hours beside the product's, by policy and attainment in percent."""
    ours = points["slicewise"]
    return {
        policy: {f"{100 * one:g}": _ratio(some, ours, one) for one in ATTAINMENTS}
        for policy, some in points.items()
        if policy != "slicewise"
    }


def _ratio(
    some: list[Mapping[str, float]], ours: list[Mapping[str, float]], attainment: float
) -> float | None:
    hours, beside = slice_hours_at(some, attainment), slice_hours_at(ours, attainment)
    return round(hours / beside, 3) if hours and beside else None


def show(report: Mapping[str, Any]) -> None:
    """Print the ratios."""
    for line in _lines(report):
        print(line)  # noqa: T201


def _lines(report: Mapping[str, Any]) -> Iterator[str]:
    yield "slice-hours beside the product's, at 90, 95, 99 and 99.9 % in time"
    for case, one in report["cases"].items():
        for policy, values in one["ratio"].items():
            said = " ".join(f"{value:.3f}" if value else "–" for value in values.values())
            yield f"{case}: {policy} {said}"


if __name__ == "__main__":
    reporting.run("autoscale_lengths", __doc__, "two aims in place of nine", measure, show)
