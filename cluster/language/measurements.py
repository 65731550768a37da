"""What models do on slices, as ``slicewise profile`` measures it."""

from collections.abc import Iterable

from pydantic import BaseModel, ConfigDict, Field

from slicewise.cluster.language.codes import Code
from slicewise.cluster.language.errors import InvalidInputError


class TokenFigures(BaseModel):
    """How an instance makes tokens, with as many requests at a time as its measurement says.

    Attributes:
        load: what was asked: tokens of prompt and answer as ``1024+128``, or the requests' digest.
        prompt_tokens, output_tokens: of a request, on average.
        output_mtps: thousandths of an output token per second, of the whole instance.
        ttft_p50_us, ttft_p99_us: microseconds until a request's first token.
        tpot_p50_us, tpot_p99_us: microseconds from one token of an answer to the next, on average
            over the answer; 0 if no answer has two.
    """

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)

    load: str = Field(max_length=100)
    prompt_tokens: int = Field(0, ge=0)
    output_tokens: int = Field(0, ge=0)
    output_mtps: int = Field(0, ge=0)
    ttft_p50_us: int = Field(0, ge=0)
    ttft_p99_us: int = Field(0, ge=0)
    tpot_p50_us: int = Field(0, ge=0)
    tpot_p99_us: int = Field(0, ge=0)


class Measurement(BaseModel):
    """What one instance does that serves a model in one configuration.

    Attributes:
        model: name in the model repository.
        board: the GPU model, as in the table of MIG profiles.
        type: the GRES type.
        batch: requests in an inference; of a model that makes tokens, requests at a time.
        processes: processes that serve the model in the instance.
        throughput_mrps: thousandths of a request per second, of the whole instance; 0 if the
            instance can't serve the model.
        latency_us: microseconds within which 95 % of the inferences were answered.
        samples: inferences that count.
        steady: whether the figure had settled.
        reason: why the instance can't serve the model; "" if it can.
        tokens: None of a model that makes none.
    """

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)

    model: str
    board: str
    type: str
    batch: int = Field(ge=1)
    processes: int = Field(ge=1)
    throughput_mrps: int = Field(ge=0)
    latency_us: int = Field(ge=0)
    samples: int = Field(ge=0)
    steady: bool
    reason: str
    tokens: TokenFigures | None = None

    @property
    def load(self) -> str:
        """What was asked of the model; figures of different loads can't be compared."""
        return self.tokens.load if self.tokens is not None else ""

    @property
    def key(self) -> tuple[str, str, str, int, int]:
        """The values that identify a measurement: a file has one measurement of each key."""
        return self.model, self.board, self.type, self.processes, self.batch


def merged(old: Iterable[Measurement], new: Iterable[Measurement]) -> tuple[Measurement, ...]:
    """Both, sorted; if something was measured again, only the new measurement."""
    by_key = {measurement.key: measurement for measurement in (*old, *new)}
    return tuple(by_key[key] for key in sorted(by_key))


def require_one_load(rows: Iterable[Measurement]) -> None:
    """Raise InvalidInputError (SW-INPUT-FILE) if figures of a model are of different requests."""
    loads: dict[str, set[str]] = {}
    for row in rows:
        loads.setdefault(row.model, set()).add(row.load)
    for load in loads.values():
        if len(load) > 1:
            raise InvalidInputError(
                Code.INPUT_FILE,
                f"The measurements are of different requests: {shown_loads(load)}.",
                "Give files that were measured with the same ones.",
            )


def shown_loads(loads: Iterable[str]) -> str:
    """Name loads in a message; "" is that of a model that makes no tokens."""
    return f"{', '.join(load or 'no' for load in sorted(loads))} tokens"
