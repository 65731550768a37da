"""[energy] of slicewise.toml: what a kilowatt-hour of boards means to a site."""

from pathlib import Path

from pydantic import Field

from slicewise.cluster.settings.section import Section

MOST_G_PER_KWH = 10_000.0


class EnergySettings(Section):
    """[energy]: grams of CO2 beside kilowatt-hours; docs/how-to/energy.md."""

    carbon_g_per_kwh: float | None = Field(
        None,
        ge=0,
        lt=MOST_G_PER_KWH,
        description="Grams of CO2 for a kilowatt-hour; unset: none are shown.",
    )
    carbon_file: Path | None = Field(
        None,
        description="CSV with the columns time (ISO 8601 with a zone) and g_per_kwh: of a day the "
        "mean of its values counts, and of days without any carbon_g_per_kwh. slicewise cheapest "
        "reads its hours to come.",
    )
    pue: float = Field(
        1.0,
        ge=1,
        le=5,
        description="Kilowatt-hours that the site takes for each of its boards: it multiplies "
        "grams of CO2, and no kilowatt-hours.",
    )
