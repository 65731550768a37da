"""A daemon that books what requests used, and the lines and runs that it books."""

from types import SimpleNamespace
from typing import Any

from slicewise.cluster.language.codes import Code
from slicewise.cluster.language.errors import InvalidInputError, UnreachableError
from slicewise.cluster.rpc.usage_messages import (
    EngineCountersRequest,
    RefusedRecord,
    UsagePostAnswer,
    UsagePostRequest,
)

DIGEST, RUN = "0a" * 32, (7, 0, 1000)


def line(number: int = 1, digest: str = DIGEST, boot: str = "gw-17-5", end_ms: int = 1900) -> str:
    counts = f"1000 {end_ms} 1200 9 5 7 whole usage"
    return f"usage {boot} {number} nlp carol key1 nlp/chat {digest} {counts}"


def state(*digests: str) -> Any:
    """One service with a run for each of these certificates, in slots from 0 on."""
    verified = {
        index: SimpleNamespace(
            run=SimpleNamespace(start_s=1000, endpoint=SimpleNamespace(digest=digest))
        )
        for index, digest in enumerate(digests)
    }
    generation = SimpleNamespace(verified=verified)
    return {"nlp/chat": SimpleNamespace(generations={7: generation})}


class Daemon:
    """Books once, unless it is away."""

    def __init__(self) -> None:
        self.booked: dict[tuple[str, int], Any] = {}
        self.counters: list[Any] = []
        self.is_away = False
        self.is_lost = False
        """Whether its answers are."""
        self.refused: tuple[RefusedRecord, ...] = ()
        self.poison = frozenset[int]()
        """Numbers that it refuses with all of their batch."""

    async def post_usage(self, request: UsagePostRequest) -> UsagePostAnswer:
        if self.is_away:
            raise UnreachableError(Code.DAEMON_DOWN, "away")
        if self.poison & {record.number for record in request.records}:
            raise InvalidInputError(Code.VALUE, "outcome: no such one")
        new = {(request.boot, record.number): record for record in request.records}
        self.booked = {**new, **self.booked}
        if self.is_lost:
            raise UnreachableError(Code.DAEMON_DOWN, "lost")
        return UsagePostAnswer(booked=len(new), known=0, refused=self.refused)

    async def note_engine_counters(self, request: EngineCountersRequest) -> None:
        self.counters += request.runs
