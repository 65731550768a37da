"""Messages about joules: what a node's meter has seen of its boards."""

from typing import Annotated, Self

from pydantic import Field, model_validator

from slicewise.cluster.language.gpus.energy import (
    MOST_MW,
    NOBODY,
    BoardHour,
    BoardHourKey,
    EnergyMeasure,
    EnergyPart,
    Split,
)
from slicewise.cluster.rpc.message import NO_CONTROLS, Asks, DoneAnswer, Message, Request
from slicewise.cluster.rpc.usage_messages import Boot

MOST_PARTS = 2700
"""Most parts of hours, and hours, of one message: with the longest numbers they fit into a request.
"""
MOST_BOARDS = 64
_Uuid = Annotated[str, Field(pattern=r"^[A-Za-z0-9-]{1,64}$")]
_Energy = Annotated[int, Field(ge=0, lt=2**53)]


class ToldPart(Message):
    """A part of a board's hour.

    Attributes:
        job_id: Slurm's raw number of the job; 0 for what is nobody's.
    """

    job_id: int = Field(ge=0, lt=2**32)
    split: Split
    energy_mj: _Energy

    @model_validator(mode="after")
    def _idle_is_nobodys(self) -> Self:
        if (self.job_id == NOBODY) != (self.split is Split.IDLE):
            raise ValueError("what is idle is nobody's, and nothing else is")
        return self


class ToldHour(Message):
    """What a meter has seen of an hour of a board, in millijoules.

    Attributes:
        hour_s: when the hour begins, in Unix seconds.
        covered_ms: in how much of the hour; more than it has, where a clock was set.
        checked_mj: what the counter says of the time in which power was read, too.
        power_mj: what that power, times the time, says of it.
        parts: whose it is; they add up to ``energy_mj``.
    """

    hour_s: int = Field(ge=0, lt=2**40, multiple_of=3600)
    gpu_uuid: _Uuid
    measure: EnergyMeasure
    model: str = Field(min_length=1, max_length=96, pattern=NO_CONTROLS)
    energy_mj: _Energy
    covered_ms: int = Field(ge=0, lt=2**40)
    checked_mj: _Energy
    power_mj: _Energy
    parts: tuple[ToldPart, ...] = Field(max_length=MOST_PARTS)

    @model_validator(mode="after")
    def _adds_up(self) -> Self:
        if max(self.energy_mj, self.power_mj) * 1000 > MOST_MW * self.covered_ms:
            raise ValueError("no board takes so much in that time")
        if sum(part.energy_mj for part in self.parts) != self.energy_mj:
            raise ValueError("the parts don't add up to energy_mj")
        if len({(part.job_id, part.split) for part in self.parts}) < len(self.parts):
            raise ValueError("a part is there twice")
        return self

    @classmethod
    def of_board(cls, key: BoardHourKey, hour: BoardHour) -> Self:
        """What a meter knows of an hour."""
        return cls(
            hour_s=key.hour_s,
            gpu_uuid=key.gpu_uuid,
            measure=key.measure,
            model=hour.model,
            energy_mj=hour.energy_mj,
            covered_ms=hour.covered_ms,
            checked_mj=hour.checked_mj,
            power_mj=hour.power_mj,
            parts=tuple(
                ToldPart(job_id=part.job_id, split=part.split, energy_mj=part_mj)
                for part, part_mj in sorted(hour.parts.items())
            ),
        )

    def as_board(self) -> tuple[BoardHourKey, BoardHour]:
        """The same as the meter knows it."""
        parts = {EnergyPart(part.job_id, part.split): part.energy_mj for part in self.parts}
        hour = BoardHour(
            self.model, self.energy_mj, self.covered_ms, self.checked_mj, self.power_mj, parts
        )
        return BoardHourKey(self.hour_s, self.gpu_uuid, self.measure), hour


class ToldPower(Message):
    """What a board draws now, in milliwatts."""

    gpu_uuid: _Uuid
    power_mw: int = Field(ge=0, le=MOST_MW)


class EnergyPostRequest(Request, Asks[DoneAnswer], post="energy", asker="operators"):
    """A node's meter: what its boards took. Only the daemon that leads answers.

    Without an answer the same is sent again: of what one meter says of an hour of a board the
    largest counts, with its parts.

    Attributes:
        node: the node's name in slurm.conf.
        seen_by: the meter, by a name that no other ever has.
        boards: what each draws at this moment.
        hours: all of each hour that this meter has seen.
    """

    node: str = Field(pattern=r"^[A-Za-z0-9_.-]{1,64}$")
    seen_by: Boot
    boards: tuple[ToldPower, ...] = Field(max_length=MOST_BOARDS)
    hours: tuple[ToldHour, ...] = Field(max_length=MOST_PARTS)

    @model_validator(mode="after")
    def _hours_are_there_once(self) -> Self:
        keys = {(hour.hour_s, hour.gpu_uuid, hour.measure) for hour in self.hours}
        if len(keys) < len(self.hours):
            raise ValueError("an hour of a board is there twice")
        return self
