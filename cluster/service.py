"""What a service is: one schema for TOML files and for the ``#SLICEWISE`` lines of a script."""

import re
from collections.abc import Iterable, Mapping
from pathlib import PurePosixPath
from typing import Annotated, Self

from pydantic import (
    BaseModel,
    ConfigDict,
    Field,
    StringConstraints,
    ValidationError,
    model_validator,
)

from cluster.errors import InvalidInputError

DIRECTIVE = "#SLICEWISE"
MAX_SLOTS = 256
"""Slots of one service: each is an array task that slurmctld keeps in memory."""

Name = Annotated[str, StringConstraints(pattern=r"^[a-z0-9]([a-z0-9-]{0,30}[a-z0-9])?$")]
Tenant = Annotated[str, StringConstraints(pattern=r"^[a-z0-9_][a-z0-9_.-]{0,62}$")]
ModelName = Annotated[str, StringConstraints(pattern=r"^[A-Za-z0-9_][A-Za-z0-9_.-]{0,127}$")]
GresType = Annotated[str, StringConstraints(pattern=r"^[A-Za-z0-9][A-Za-z0-9_.+-]{0,62}$")]
SafePath = Annotated[str, StringConstraints(pattern=r"^/[A-Za-z0-9_./@%+=:,-]*$", max_length=1024)]


class ServiceSpec(BaseModel):
    """One inference service: a job array of Triton servers with an elastic number of replicas."""

    model_config = ConfigDict(frozen=True, extra="forbid", str_strip_whitespace=False)

    name: Name = Field(description="Part of the service's address: lower case, digits, hyphens.")
    tenant: Tenant = Field(
        description="The Slurm account that is charged (Slurm keeps these in lower case)."
    )
    model_repository: SafePath = Field(
        description="Absolute path of a Triton model repository on a file system of the nodes."
    )
    model: ModelName = Field(description="The model in it whose readiness counts.")
    profile: GresType | None = Field(
        None, description="GRES type of one replica, such as 1g.10gb. Either this or need_gib."
    )
    need_gib: float | None = Field(
        None, gt=0, description="GPU memory that a replica needs: the cheapest profile that fits."
    )
    min_replicas: int = Field(0, ge=0, le=MAX_SLOTS, description="Kept even when idle.")
    max_replicas: int = Field(1, ge=1, le=MAX_SLOTS, description="Slots of the job array.")
    concurrency: int = Field(
        1, ge=1, le=1024, description="Requests that one replica works on at once; more wait."
    )
    keep_alive_s: float = Field(
        60, ge=0, le=86_400, description="Idle seconds before a replica is given back."
    )
    time_limit_min: int = Field(
        60, ge=2, le=43_200, description="Slurm's limit of one run of a replica."
    )
    cpus: int = Field(1, ge=1, le=1024, description="CPUs of one replica.")
    memory_mib: int = Field(1024, ge=64, description="Host memory of one replica.")
    partition: Name | None = Field(None, description="Slurm partition; unset: Slurm's default.")

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        if self.min_replicas > self.max_replicas:
            raise ValueError(
                f"min_replicas: {self.min_replicas} is above max_replicas {self.max_replicas}; "
                f"allowed: 0 to {self.max_replicas}"
            )
        if (self.profile is None) == (self.need_gib is None):
            raise ValueError("profile, need_gib: give exactly one of the two")
        if ".." in PurePosixPath(self.model_repository).parts:
            raise ValueError("model_repository: the path must not contain '..'")
        return self

    def directives(self) -> tuple[str, ...]:
        """The ``#SLICEWISE key=value`` lines that say the same."""
        values = self.model_dump(exclude_none=True)
        return tuple(f"{DIRECTIVE} {key}={_plain(value)}" for key, value in values.items())


def _plain(value: object) -> str:
    return f"{value:g}" if isinstance(value, float) else str(value)


_LINE = re.compile(rf"^{DIRECTIVE}[ \t]+(?P<key>[a-z_]+)=(?P<value>\S*)[ \t]*$")


def directives_of_script(lines: Iterable[str]) -> Mapping[str, str]:
    """The ``#SLICEWISE`` lines before a script's first command; {} if it has none.

    Raises InvalidInputError (SW-DIRECTIVE) for a line that is not ``#SLICEWISE key=value``.
    """
    found: dict[str, str] = {}
    for line in lines:
        text = line.strip()
        if text and not text.startswith("#"):
            break
        if text.startswith(DIRECTIVE):
            key, value = _directive(text)
            found[key] = value
    return found


def _directive(text: str) -> tuple[str, str]:
    match = _LINE.match(text)
    if match is None:
        raise InvalidInputError(
            "SW-DIRECTIVE", f"Line {text!r} can't be read.", f"Write {DIRECTIVE} key=value."
        )
    return match["key"], match["value"]


def service_spec(values: Mapping[str, object]) -> ServiceSpec:
    """Validate a service's settings, from TOML or from directives (then all text).

    Raises InvalidInputError (SW-SERVICE) that names each bad key, what is allowed, what was given.
    """
    try:
        return ServiceSpec.model_validate(dict(values))
    except ValidationError as error:
        raise InvalidInputError(
            "SW-SERVICE", "; ".join(_problem(item) for item in error.errors()), _KEYS
        ) from None


_KEYS = f"Keys: {', '.join(ServiceSpec.model_fields)}."


def _problem(item: Mapping[str, object]) -> str:
    location = ".".join(str(part) for part in item["loc"])  # type: ignore[attr-defined]
    message = str(item["msg"]).removeprefix("Value error, ")
    if not location:
        return message
    given = "" if item["type"] == "missing" else f", not {item.get('input')!r}"
    return f"{location}: {message}{given}"
