"""[log] of slicewise.toml: how the daemon, the launcher and timers' commands log."""

from typing import Annotated, Literal

from pydantic import BeforeValidator, Field

from slicewise.cluster.language.codes import Code
from slicewise.cluster.language.errors import InvalidInputError
from slicewise.cluster.settings.section import Section


def _upper(value: object) -> object:
    return value.upper() if isinstance(value, str) else value


class LogSettings(Section):
    """[log]: lines of the daemon, the launcher and rebalance run; docs/how-to/monitoring.md."""

    format: Literal["logfmt", "json"] = Field(
        "logfmt", description="What a line is: logfmt (key=value), or json, an object."
    )
    level: Annotated[Literal["DEBUG", "INFO", "WARNING", "ERROR"], BeforeValidator(_upper)] = Field(
        "INFO", description="Events below it are not logged."
    )

    def at_level(self, level: str | None) -> "LogSettings":
        """Return these with another level, if one is given.

        Raises InvalidInputError (SW-USAGE) for a word that is none.
        """
        if level is None:
            return self
        try:
            return LogSettings(format=self.format, level=level)
        except ValueError:
            raise InvalidInputError(
                Code.USAGE, f"--log-level: {level!r}: write DEBUG, INFO, WARNING or ERROR."
            ) from None
