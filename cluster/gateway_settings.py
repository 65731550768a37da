"""[gateway] of slicewise.toml: HAProxy, and the limits on clients and tenants."""

from collections.abc import Mapping
from pathlib import Path

from pydantic import BaseModel, ConfigDict, Field

from cluster.service_places import Places


class TenantLimits(BaseModel):
    """[gateway.limits.tenants.NAME]: of one tenant's services together; unset is unlimited."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    requests_per_s: int | None = Field(None, ge=1, description="Requests a second.")
    concurrent: int | None = Field(None, ge=1, description="In flight and waiting.")


class LimitSettings(BaseModel):
    """[gateway.limits]: limits for each tenant without limits of its own; 0 is unlimited."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    requests_per_s: int = Field(1000, ge=0, description="Requests a second.")
    concurrent: int = Field(1000, ge=0, description="In flight and waiting.")
    connections_per_host: int = Field(
        10_000, ge=0, description="Open at once; a fifth of what the gateway takes."
    )
    tenants: Mapping[str, TenantLimits] = {}

    @property
    def any(self) -> bool:
        """Whether tenants have any limit."""
        return bool(self.requests_per_s or self.concurrent or self.tenants)


class GatewaySettings(BaseModel):
    """[gateway]: HAProxy; docs/how-to/gateway.md."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    url: str = Field(
        "http://127.0.0.1:8080", description="Where clients send their requests, as users are told."
    )
    bind: str = Field("127.0.0.1:8080", description="Where HAProxy listens, for HTTP and gRPC.")
    runtime_socket: Path = Field(
        Path("/run/haproxy/slicewise.sock"),
        description="HAProxy's Runtime API, by which the launcher sets routes.",
    )
    directory: Path = Field(
        Path("/etc/haproxy/slicewise"), description="Where the maps and the Lua file are."
    )
    master_socket: Path | None = Field(
        None, description="HAProxy's option -S: what processes that a reload replaced still do."
    )
    domain: str = Field("", description="Clients may ask SERVICE.TENANT.DOMAIN, too.")
    certificate: Path | None = Field(None, description="PEM with its key: then TLS only.")
    identity: Path = Field(
        Path("/etc/slicewise/gateway.crt"),
        description="Certificate by which replicas know the gateway; every user may read it.",
    )
    require_keys: bool = Field(
        True,
        description="Every service wants an API key; false: those of tenants that have one do.",
    )
    limits: LimitSettings = LimitSettings()
    backends: int = Field(8, ge=1, le=512, description="Services that it can carry at once.")
    services_per_tenant: int | None = Field(
        None, ge=1, description="Services of one tenant at most; none: half of backends."
    )
    servers: int = Field(16, ge=1, le=256, description="Replicas of one service at most.")
    hold_s: int = Field(
        300, ge=1, le=480, description="How long a request waits for a replica at most."
    )
    max_json_mib: int = Field(
        16, ge=1, le=1024, description="JSON of one inference at most; binary tensors are free."
    )

    @property
    def places(self) -> Places:
        """The gateway's places for services."""
        return Places(self.backends, self.services_per_tenant or max(1, self.backends // 2))
