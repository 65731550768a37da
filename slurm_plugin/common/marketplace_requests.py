"""What a marketplace's agent asks, in LiteLLM's words: ``waldur-site-agent-litellm`` asks so.

What is asked for and can't be held to is refused, and never left out of the answer in silence.
"""

from collections.abc import Mapping
from datetime import UTC, date, datetime, timedelta
from typing import Annotated, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, field_validator, model_validator

from slicewise.cluster.rpc.limit_messages import ModelText, Requests, Tokens

_MOST_DAYS = 366

KeyToken = Annotated[str, Field(pattern=r"^[0-9a-f]{12}$")]
"""By which the agent names a key: its id here, its hash in LiteLLM."""
Page = Annotated[int, Field(ge=1)]
"""Which page; the first has all."""


class _Asked(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class _Limited(_Asked):
    tpm_limit: Tokens | None = None
    rpm_limit: Requests | None = None
    max_budget: None = None
    budget_duration: None = None

    @field_validator("max_budget", "budget_duration", mode="before")
    @classmethod
    def _is_no_money(cls, value: object) -> object:
        if value is not None:
            raise ValueError(
                "a key has no budget of money here: limit tpm, rpm or, in the marketplace, tokens,"
                " and take the limit of token_cost and budget_duration out of the offering"
            )
        return value

    @property
    def limits(self) -> Mapping[str, int | None]:
        """The limits by the names that they have here; None: none."""
        return {"tokens_per_minute": self.tpm_limit, "requests_per_minute": self.rpm_limit}


class OrderedKey(_Limited):
    """POST /key/generate."""

    key_alias: str = Field(pattern=r"^[A-Za-z0-9_.-]{1,63}$")
    models: tuple[ModelText, ...] = Field((), max_length=100)
    blocked: bool = False


class ChangedLimits(_Limited):
    """POST /key/update: the limits as they shall be."""

    key: KeyToken


class NamedKey(_Asked):
    """POST /key/block and /key/unblock, GET /key/info."""

    key: KeyToken


class EndedKeys(_Asked):
    """POST /key/delete."""

    keys: tuple[KeyToken, ...] = Field(max_length=1000)


class NothingMore(_Asked):
    """GET /health/readiness, and POST /key/TOKEN/regenerate: the place says all."""


class KeySearch(_Asked):
    """GET /key/list: keys that are not ended, by the alias or a part of it."""

    key_alias: str = Field("", max_length=128)
    substring_matching: Literal["true", "false"] = "false"
    return_full_object: Literal["true"]
    page: Page = 1
    size: int = 0

    def finds(self, alias: str) -> bool:
        """Whether a key of that alias is searched for."""
        if self.substring_matching == "true":
            return self.key_alias in alias
        return self.key_alias in {"", alias}


class ActivitySearch(_Asked):
    """GET /user/daily/activity: usage of the ledger's days, the last one included."""

    start_date: date
    end_date: date
    page: Page = 1
    page_size: int = 0
    include_current_utc_day: Literal["true"] = "true"

    @model_validator(mode="after")
    def _is_a_span(self) -> Self:
        if not 0 <= (self.end_date - self.start_date).days < _MOST_DAYS:
            raise ValueError(f"ask for 1 to {_MOST_DAYS} days")
        return self

    @property
    def span_s(self) -> tuple[int, int]:
        """From when until when days of these names are in UTC, in Unix seconds."""
        ends = (self.start_date, self.end_date + timedelta(days=1))
        since_s, until_s = (datetime(*day.timetuple()[:3], tzinfo=UTC) for day in ends)
        return int(since_s.timestamp()), int(until_s.timestamp())
