"""[gateway] of slicewise.toml: HAProxy, and the limits on clients and tenants."""

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated

from pydantic import Field

from slicewise.cluster.language.model_names import Alias, ServiceKey
from slicewise.cluster.language.service_places import ServicePlaces
from slicewise.cluster.settings.section import Section


class TenantLimits(Section):
    """[gateway.limits.tenants.NAME]: of one tenant's services together; unset is unlimited."""

    requests_per_s: int | None = Field(None, ge=1, description="Requests a second.")
    concurrent: int | None = Field(
        None, ge=1, description="Requests in flight and waiting, taken together."
    )


class LimitSettings(Section):
    """[gateway.limits]: limits for each tenant without limits of its own; 0 is unlimited."""

    requests_per_s: int = Field(1000, ge=0, description="Requests a second.")
    concurrent: int = Field(
        1000, ge=0, description="Requests in flight and waiting, taken together."
    )
    connections_per_host: int | None = Field(
        None,
        ge=0,
        description="Open connections of one client address; unset: a fifth of what the gateway "
        "takes, some 4,900 where HAProxy may open 100,000 files.",
    )
    tenants: Mapping[str, TenantLimits] = {}

    @property
    def any(self) -> bool:
        """Whether tenants have any limit."""
        return bool(self.requests_per_s or self.concurrent or self.tenants)


class GatewaySettings(Section):
    """[gateway]: HAProxy; docs/how-to/gateway.md."""

    url: str = Field(
        "http://127.0.0.1:8080", description="Where clients send their requests, as users are told."
    )
    bind: str = Field("127.0.0.1:8080", description="Where HAProxy listens, for HTTP and gRPC.")
    runtime_socket: Path = Field(
        Path("/run/haproxy/slicewise.sock"),
        description="HAProxy's Runtime API, by which the launcher sets routes. Beside it "
        "slicewise-master.sock is HAProxy's option -S.",
    )
    directory: Path = Field(
        Path("/etc/haproxy/slicewise"), description="Directory of the gateway's maps and Lua file."
    )
    domain: str = Field(
        "", description="Clients may also address a service as SERVICE.TENANT.DOMAIN."
    )
    certificate: Path | None = Field(
        None, description="PEM file with certificate and key; if set, clients must use TLS."
    )
    identity: Path = Field(
        Path("/etc/slicewise/gateway.crt"),
        description="Certificate by which replicas recognize the gateway; readable by every user.",
    )
    require_keys: bool = Field(
        True,
        description="Every service requires an API key; false: only services of tenants that have "
        "a key do.",
    )
    aliases: Annotated[Mapping[Alias, ServiceKey], Field(max_length=256)] = Field(
        {},
        description='Further names of models: NAME = "OWNER/NAME" of a service. An alias is for '
        "those who may use that service, and wins over services of its name that others share.",
    )
    limits: LimitSettings = LimitSettings()
    services: int = Field(
        512,
        ge=1,
        le=10_000,
        description="Services that the gateway can carry at the same time; backends if that is "
        "more. Each engine gets as many places, in memory of HAProxy: docs/how-to/sizing.md.",
    )
    backends: int = Field(
        32,
        ge=1,
        le=512,
        description="How many of these services can have replicas at the same time, for each "
        "engine.",
    )
    services_per_tenant: int | None = Field(
        None, ge=1, description="Maximum number of services of one tenant; unset: half of all."
    )
    servers: int = Field(16, ge=1, le=256, description="Maximum number of replicas of one service.")
    hold_s: int = Field(
        300, ge=1, le=480, description="Maximum seconds that a request waits for a replica."
    )
    max_json_mib: int = Field(
        16,
        ge=1,
        le=1024,
        description="Maximum MiB of JSON in one inference request; binary tensors don't count.",
    )

    buffer_kib: int = Field(
        16,
        ge=16,
        le=256,
        description="KiB of a request, headers included, in which the gateway must find what it "
        "reads of it: the model in a body of OpenAI's API, the id of a sequence. HAProxy's memory "
        "for each open request grows with it, and its CPU for each body of OpenAI's API: up to "
        "0.06 s with 256. So does what retry_once can send again.",
    )

    @property
    def master_socket(self) -> Path:
        """HAProxy's master socket (option -S), beside its Runtime API's.

        By it the launcher sees what processes that a reload has replaced still do.
        """
        own = self.runtime_socket
        return own.with_name(f"{own.stem}-master{own.suffix}")

    @property
    def kept_lines(self) -> Path:
        """Where HAProxy keeps what requests used, in a directory of its own beside the sockets."""
        own = self.runtime_socket
        return own.with_name(f"{own.stem}-usage") / "lines"

    @property
    def places(self) -> ServicePlaces:
        """The gateway's places for services."""
        total = max(self.services, self.backends)
        return ServicePlaces(total, self.services_per_tenant or max(1, total // 2))

    @property
    def idle_backends(self) -> int:
        """Backends without server lines: enough for every service, none if all have lines."""
        return self.services if self.services > self.backends else 0
