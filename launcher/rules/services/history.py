"""Generations of a service: what each has changed, and which one a rollback goes back to."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal

from slicewise.cluster.language.codes import Code
from slicewise.cluster.language.errors import InvalidInputError
from slicewise.cluster.rpc.messages import ServiceView
from slicewise.cluster.rpc.read_messages import GenerationRecord
from slicewise.launcher.rules.services.apply_plan import KeyChange, changes_between

Stands = Literal["newest", "being replaced", "ended"]


@dataclass(frozen=True)
class PastGeneration:
    """One generation of a service.

    Attributes:
        service: ``tenant/name``.
        changes: keys that differ from the generation before; () of the first one.
        directives: its script's keys.
    """

    service: str
    array_job_id: int
    submitted_s: int
    user: str
    state: Stands
    changes: tuple[KeyChange, ...]
    directives: Mapping[str, str] = field(hash=False)


def history(
    records: Sequence[GenerationRecord], living: Sequence[ServiceView]
) -> tuple[PastGeneration, ...]:
    """Return all generations of one service, the newest first, as ``records`` and ``living`` are.

    The newest that lives is the one that counts: a newer one may have been given up.
    """
    alive = {service.array_job_id: service.directives for service in living}
    newest = living[0].array_job_id if living else None
    before = (*records[1:], None)
    return tuple(
        PastGeneration(
            f"{record.tenant}/{record.name}",
            record.array_job_id,
            record.submitted_s,
            record.author,
            _stands(record, newest, alive),
            () if last is None else changes_between(last.directives, record.directives),
            record.directives,
        )
        for record, last in zip(records, before, strict=True)
    )


def _stands(
    generation_record: GenerationRecord, newest: int | None, alive: Mapping[int, Mapping[str, str]]
) -> Stands:
    # Slurm may have given the id of an ended array again.
    if alive.get(generation_record.array_job_id) != generation_record.directives:
        return "ended"
    return "newest" if generation_record.array_job_id == newest else "being replaced"


def to_go_back_to(past: Sequence[PastGeneration], array_job_id: int | None) -> PastGeneration:
    """Return the generation with that array job; None: the one before the newest, or the last one.

    Raises InvalidInputError (SW-NAME-UNKNOWN) if there is none.
    """
    if array_job_id is not None:
        older = [generation for generation in past if generation.array_job_id == array_job_id]
    else:
        place = next((i for i, record in enumerate(past) if record.state == "newest"), -1)
        older = list(past[place + 1 :])
    if older:
        return older[0]
    arrays = ", ".join(str(generation.array_job_id) for generation in past)
    which = "before the newest" if array_job_id is None else f"with array job {array_job_id}"
    raise InvalidInputError(
        Code.NAME_UNKNOWN,
        f"There is no generation {which}.",
        f"Recorded: {arrays or 'none'}.",
    )
