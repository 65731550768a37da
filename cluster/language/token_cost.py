"""Says what tokens cost by measurements, and which point is the cheapest within an objective.

The cost is in slices; nobody is charged by it.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from slicewise.cluster.language.measurements import Measurement

_TOKENS = 1_000_000


@dataclass(frozen=True)
class TokenObjective:
    """What answers must keep; None is no bound. The names are those of a service's file.

    Attributes:
        ttft_ms: time to the first token, of 99 % of the requests.
        tpot_ms: time from one token to the next, on average over an answer, of 99 % of them.
        p95_ms: time to the whole answer, of 95 % of the requests.
    """

    ttft_ms: int | None = None
    tpot_ms: int | None = None
    p95_ms: int | None = None

    @property
    def keys(self) -> Mapping[str, int]:
        """The bounds that there are, by their names in a service's file."""
        named = {"ttft_ms": self.ttft_ms, "tpot_ms": self.tpot_ms, "p95_ms": self.p95_ms}
        return {name: bound for name, bound in named.items() if bound is not None}

    def is_kept(self, row: Measurement) -> bool:
        """Whether an instance that does what was measured keeps the objective."""
        if not row.throughput_mrps:
            return False
        figures = row.tokens
        needed: dict[str, int] = {"p95_ms": row.latency_us}
        if figures is not None:
            # Of answers whose text the client can't tell, such as tool calls, it is not known.
            if self.tpot_ms is not None and not figures.tpot_p99_us and figures.output_tokens > 1:
                return False
            needed |= {"ttft_ms": figures.ttft_p99_us, "tpot_ms": figures.tpot_p99_us}
        return all(needed.get(name, 0) <= 1000 * bound for name, bound in self.keys.items())


@dataclass(frozen=True)
class TokenCost:
    """A measurement, and what tokens cost there.

    Attributes:
        millislice_s: millislice-seconds for a million output tokens.
    """

    row: Measurement
    millislice_s: int


def token_cost(row: Measurement, costs: Mapping[str, int]) -> TokenCost | None:
    """Return what tokens cost; None if the instance makes none, or if its cost is not known.

    ``costs`` are millislices by GRES type.
    """
    if row.tokens is None or not row.tokens.output_mtps or row.type not in costs:
        return None
    return TokenCost(row, -(-1000 * _TOKENS * costs[row.type] // row.tokens.output_mtps))


def cheapest(
    rows: Iterable[Measurement], costs: Mapping[str, int], objective: TokenObjective
) -> TokenCost | None:
    """Return the point of the lowest cost that keeps the objective; None if none does.

    Of several of one cost it is the one with the quickest answers.
    """
    kept = [found for row in rows if objective.is_kept(row) and (found := token_cost(row, costs))]
    return min(kept, key=lambda cost: (cost.millislice_s, cost.row.latency_us), default=None)


def slice_hours(millislice_s: int) -> str:
    """Format millislice-seconds as slice-hours with three significant digits, at least."""
    hours = millislice_s / 3_600_000
    digits = 0 if hours >= 100 else 1 if hours >= 10 else 2 if hours >= 1 else 3  # noqa: PLR2004
    return f"{hours:,.{digits}f}"
