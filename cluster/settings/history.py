"""[history] of slicewise.toml: how long figures over time are kept."""

from collections.abc import Mapping

from pydantic import BaseModel, ConfigDict, Field


class HistorySettings(BaseModel):
    """[history]: figures of slices, tenants and services over time; docs/how-to/history.md."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    ten_second_h: int = Field(
        6, ge=1, le=48, description="Hours for which figures of ten seconds are kept."
    )
    minute_days: int = Field(
        7, ge=1, le=92, description="Days for which means of a minute are kept."
    )
    hour_days: int = Field(
        800,
        ge=62,
        le=3660,
        description="Days for which means of an hour are kept, of which slicewise report makes a "
        "month's.",
    )

    @property
    def kept_s(self) -> Mapping[int, int]:
        """Seconds for which figures are kept, by the seconds of the step that they are of."""
        return {
            10: self.ten_second_h * 3600,
            60: self.minute_days * 86_400,
            3600: self.hour_days * 86_400,
        }
