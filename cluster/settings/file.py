"""What slicewise.toml says, the one settings file of the daemon, the launcher and the commands.

``read.py`` reads it.
"""

import re
from collections.abc import Mapping
from fractions import Fraction
from functools import cached_property
from ipaddress import IPv4Network, IPv6Network, ip_address, ip_network
from pathlib import Path
from typing import Annotated, Literal, Self
from urllib.parse import urlsplit

from annotated_types import Gt, Le
from pydantic import (
    AfterValidator,
    BeforeValidator,
    Field,
    model_validator,
)

from slicewise.cluster.language.accounts import account_name
from slicewise.cluster.language.billing import MILLISLICES, BillingUnit
from slicewise.cluster.language.engine_names import EngineName
from slicewise.cluster.language.gpus.mig_names import has_mig_size
from slicewise.cluster.language.gpus.mig_profiles import (
    Board,
    WholeBoard,
    board,
    cost_millislices,
    profile_of,
    whole_board,
    whole_cost,
    whole_memory_mib,
)
from slicewise.cluster.language.gpus.vendors import accelerator
from slicewise.cluster.language.gres import SHARED
from slicewise.cluster.language.job_class import JobClass
from slicewise.cluster.language.model_names import ServiceKey
from slicewise.cluster.language.periods import check_zone
from slicewise.cluster.language.units import Millislices, slices_words
from slicewise.cluster.settings.energy import EnergySettings
from slicewise.cluster.settings.engines import EngineSettings
from slicewise.cluster.settings.gateway import GatewaySettings
from slicewise.cluster.settings.lending import LendingSettings
from slicewise.cluster.settings.log import LogSettings
from slicewise.cluster.settings.repartition import RepartitionSettings
from slicewise.cluster.settings.section import Section

_PORTS, _PORT = 65536, re.compile(r"[0-9]{1,5}")


def _weight(value: object) -> Fraction:
    # Whole numbers are exact: one with 99999999 zeros would be computed for hours.
    if re.search(r"[eE][+-]?[0-9_]{3}", str(value)):
        raise ValueError('write a number such as "1.5" or "3/2"')
    try:
        return Fraction(str(value))
    except (ValueError, ZeroDivisionError):
        raise ValueError('write a number such as "1.5" or "3/2"') from None


def host_and_port(address: str) -> tuple[str, int]:
    """Split ``head:6820`` or ``[::1]:6820`` into host and port; ValueError for anything else."""
    host, _, port = address.rpartition(":")
    if not host or not _PORT.fullmatch(port) or not 0 < int(port) < _PORTS:
        raise ValueError('write "HOST:PORT"')
    return host.removeprefix("[").removesuffix("]"), int(port)


def is_loopback(address: str) -> bool:
    """Whether ``HOST:PORT`` can be reached from its own host only."""
    host, _ = host_and_port(address)
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def _address(text: str) -> str:
    if text:
        host_and_port(text)
    return text


def _loopback(address: str) -> str:
    if address and not is_loopback(address):
        raise ValueError(
            "other hosts reach this address, and what answers there speaks no TLS: listen on"
            " 127.0.0.1, behind a proxy on this host that does (docs/how-to/web.md, marketplace.md)"
        )
    return address


Address = Annotated[str, AfterValidator(_address)]
LoopbackAddress = Annotated[Address, AfterValidator(_loopback)]
_Tenant = Annotated[str, AfterValidator(account_name)]


def _listed(value: object) -> object:
    return ((value,) if value else ()) if isinstance(value, str) else value


Addresses = Annotated[tuple[Address, ...], BeforeValidator(_listed)]
"""One address, or several in a list."""
Weight = Annotated[Fraction, BeforeValidator(_weight), Gt(Fraction(0))]
PerSlice = Annotated[Weight, Le(Fraction(1_000_000))]
"""At most a million: Slurm counts up to 2^64, and the largest budget still fits into that."""


class ClusterSettings(Section):
    """[cluster]"""

    name: str = Field(description="Slurm's ClusterName: part of every key in the ledger.")
    partitions: tuple[str, ...] = Field(
        min_length=1,
        description="Managed partitions, whose GPUs are counted and charged. Their "
        "TRESBillingWeights follow from billing_per_slice.",
    )
    billing_per_slice: PerSlice = Field(
        MILLISLICES.per_slice,
        description="What Slurm bills for one slice; what it bills for each GRES type must be a "
        "whole number.",
    )


class GpuSettings(Section):
    """[gpus."A100-80GB"]: a GPU model of the MIG table, its weight and its GRES types.

    A model that can't be cut may have any name, and has whole GPUs only.
    """

    weight: Weight = Field(
        Fraction(1), description="Cost of a slice of this model, in slices of a GPU of weight 1."
    )
    types: tuple[str, ...] = Field(
        (), description="MIG profiles, each at the price of the MIG table."
    )
    whole: tuple[str, ...] = Field(
        (), description="GPUs that are not cut: each costs 7 slices times the weight."
    )

    @model_validator(mode="after")
    def _some_type(self) -> Self:
        if not self.types and not self.whole:
            raise ValueError("types: name at least one GRES type, or one of whole GPUs")
        if cut := [gres_type for gres_type in self.whole if has_mig_size(gres_type)]:
            raise ValueError(
                f"whole: {', '.join(cut)} is no whole GPU, as the size of a MIG instance in its"
                " name says; name it in types of its model"
            )
        return self


_Part = Annotated[int, Field(ge=1, le=1_000_000)] | None


class SharedSettings(Section):
    """[shared]: GPUs that several jobs use at a time, by Slurm's GRES shard and mps.

    Nothing keeps the memory of such jobs apart: docs/reference/mig.md.
    """

    shard_millislices: _Part = Field(
        None,
        description="Cost of one shard, in thousandths of a slice: 875 where 8 are a GPU of weight"
        " 1. Unset: jobs that ask for shards are refused.",
    )
    mps_millislices: _Part = Field(
        None,
        description="Cost of one mps, in the same way: 70 where 100 are a GPU. Unset: refused.",
    )

    @property
    def costs(self) -> Mapping[str, Millislices]:
        """Millislices of one part, by the name of its GRES; only those with a price."""
        priced = {"shard": self.shard_millislices, "mps": self.mps_millislices}
        return {name: Millislices(cost) for name, cost in priced.items() if cost is not None}


class DaemonSettings(Section):
    """[daemon]: as whom it runs, what it may do; docs/explanation/daemon.md."""

    run_dir: Path = Field(
        Path("/run/slicewise"),
        description="Its sockets: admission/admission.sock, user.sock; local to each host.",
    )
    slurm_user: str = Field("slurm", description="SlurmUser, as whom the daemon runs.")
    launcher_user: str = Field(
        "slicewise", description="The one unprivileged user that may set desired slots."
    )
    mode: Literal["observe", "advise", "enforce"] = Field(
        "observe",
        description="observe, advise: services run, and nothing else is changed in Slurm; enforce: "
        "limits are set. job_submit.lua has a mode of its own.",
    )
    pair: bool = Field(
        False,
        description="A daemon runs on each of two SlurmctldHosts; only the one that leads acts.",
    )
    listen: Address = Field(
        "",
        description="HOST:PORT where users of other hosts, known by munge, reach the daemon; "
        "empty: none.",
    )
    certificate: Path | None = Field(
        None,
        description="PEM file with certificate and key, that only SlurmUser and root can read: "
        "daemon.listen speaks https, and users are known by tokens of Slurm in place of munge. "
        "Set on every host.",
    )
    certificate_authority: Path | None = Field(
        None,
        description="PEM file by which other hosts believe daemon.certificate, readable by every "
        "user; None: by what the host trusts.",
    )
    slurm_jwt_key: Path | None = Field(
        None,
        description="Slurm's jwt_hs256.key, which the daemon reads: its tokens (scontrol token) "
        "name users at daemon.listen, and open the page's JSON. None: they don't.",
    )
    connect: Addresses = Field(
        (),
        description="HOST:PORT where commands on other hosts find the daemon; for a pair, a list "
        "of both.",
    )
    slurm: Literal["auto", "commands", "pyslurm", "slurmrestd"] = Field(
        "auto",
        description="How jobs are read; auto: with pyslurm where it fits the running Slurm, else "
        "with Slurm's commands.",
    )
    slurmrestd: str = Field(
        "",
        # Of http any user of the host that listens while slurmrestd is down would get the token.
        pattern=r"^(/.+|https://[^/]+/?)?$",
        description='Where slurmrestd is asked, for slurm = "slurmrestd": the path of its '
        "socket, or https://HOST:PORT.",
    )
    slurmrestd_token: Path | None = Field(
        None,
        description="A file with slurmrestd's JSON web token, that only SlurmUser and root can "
        "read; read at each question. None: by the socket's user.",
    )
    munge_socket: Path | None = Field(
        None, description="Socket of munged, if it is not libmunge's default."
    )
    metrics: Address = Field("", description="HOST:PORT of Prometheus metrics; empty: none.")
    extend_leases: bool = Field(
        True,
        description="Extend the time limit of replicas that are still needed; false: a successor "
        "takes over.",
    )

    @model_validator(mode="after")
    def _tokens_can_be_checked(self) -> Self:
        if self.certificate is not None and self.slurm_jwt_key is None:
            raise ValueError(
                "certificate: needs slurm_jwt_key, by which the daemon knows who asks"
                " (docs/how-to/without-munge.md)"
            )
        return self

    @model_validator(mode="after")
    def _slurmrestd_is_somewhere(self) -> Self:
        if self.slurm == "slurmrestd" and not self.slurmrestd:
            raise ValueError('slurm is "slurmrestd": say in slurmrestd where it is')
        return self

    @property
    def admission_socket(self) -> Path:
        """Path of the socket for SlurmUser and root only."""
        return self.run_dir / "admission" / "admission.sock"

    @property
    def user_socket(self) -> Path:
        """Path of the socket for every user on this host."""
        return self.run_dir / "user.sock"


class DatabaseSettings(Section):
    """[database]: where the ledger is, unless SLICEWISE_DATABASE_URL says so."""

    url_file: Path | None = Field(
        None, description="A file with postgresql://..., that only SlurmUser and root can read."
    )


class LedgerSettings(Section):
    """[ledger]: rules of charging and limits that a site may choose; docs/explanation/ledger.md."""

    node_failure: Literal["tenant", "operator"] = Field(
        "tenant",
        description="Who bears the use of a run that a failure of its node ended: tenant is "
        "charged as usual, operator waives it.",
    )
    idle_time: Literal["owner", "audience"] = Field(
        "owner",
        description="Who bears the time in which a service that others may ask has no request: its "
        "owner, or its audience, by nominal quota.",
    )
    output_weights: Annotated[
        Mapping[ServiceKey, Annotated[float, Field(ge=0.001, le=1000)]], Field(max_length=256)
    ] = Field(
        {},
        description="What a token of an answer weighs beside one of the prompt, by OWNER/NAME, "
        "where hours of a shared service are divided and in its queue, as `slicewise profile "
        "show` says it; 2 unless set. A cached token of a prompt weighs 0.1.",
    )
    by_hand: Literal["put back", "adopt"] = Field(
        "put back",
        description="What to do with a limit that was changed with sacctmgr; adopt takes the "
        "billing limit of a tenant's own QOS over as its quota.",
    )
    time_zone: Annotated[str, AfterValidator(check_zone)] = Field(
        "UTC", description="Time zone in which the periods of budgets and statements begin."
    )
    journal_days: int = Field(
        400,
        ge=90,
        le=36_500,
        description="Days for which changes of loans, repartitions, the sums of observe and the "
        "record of each request's tokens are kept. Charges, budgets, quotas, keys and the sums of "
        "tokens by the hour are kept for ever.",
    )


_PerSlice = Annotated[float, Field(gt=0)] | Literal["any"] | None


class AdmissionSettings(Section):
    """[admission]: rules of admission that a site may choose; docs/how-to/install.md."""

    untyped: str = Field(
        "refuse",
        description="Requests for GPUs without a type: refuse, auto (the cheapest type that fits), "
        "or the GRES type to use.",
    )
    without_gpu: Literal["refuse", "allow"] = Field(
        "refuse", description="Whether managed partitions take jobs that ask for no GPU."
    )
    notices: Literal["asked", "always"] = Field(
        "asked",
        description="Whether sbatch of an accepted job tells what its user might not expect, such "
        "as borrowed quota: asked (slicewise sbatch, SLICEWISE_EXPLAIN=1) or always.",
    )
    cpus_per_slice: _PerSlice = Field(
        None,
        description="Maximum CPUs for each slice; unset: what the nodes have for each slice; any: "
        "no maximum.",
    )
    memory_gib_per_slice: _PerSlice = Field(
        None, description="Maximum memory in GiB for each slice, in the same way."
    )


class PlacementSettings(Section):
    """[placement]: how Slurm chooses nodes for jobs; docs/explanation/repartitioning.md."""

    node_weights: bool = Field(
        False,
        description="Set Weight of nodes, so that Slurm fills nodes in use before empty ones, and "
        "wakes those that power saving has ended last.",
    )


class PrioritySettings(Section):
    """[priority]: what is added to Slurm's formula as site_factor; docs/explanation/priority.md."""

    max: int = Field(
        10_000, ge=100, le=1_000_000, description="Highest site_factor; the lowest is 0."
    )
    class_weight: int = Field(
        3, ge=0, le=1000, description="Weight of the job's class; 0 leaves the term out."
    )
    share_weight: int = Field(
        5,
        ge=0,
        le=1000,
        description="Weight of how little the tenant has used; 0 leaves the term out.",
    )
    urgency_weight: int = Field(
        2, ge=0, le=1000, description="Weight of a service's backlog; 0 leaves the term out."
    )
    smallness_weight: int = Field(
        5,
        ge=0,
        le=1000,
        description="Weight of how little a job asks for (slices × time); 0 leaves the term out.",
    )
    half_life_h: float = Field(168.0, gt=0, description="Hours after which use counts half.")
    wait_full_h: float = Field(
        12.0,
        gt=0,
        description="Hours of waiting after which no newer job is ahead of a job that asks for "
        "next to no time.",
    )
    wait_full_limits: float = Field(
        4.0,
        ge=0,
        le=1000,
        description="So many times the job's time limit comes on top of wait_full_h.",
    )
    high_class_for: tuple[str, ...] = Field(
        (), description="Tenants whose jobs may say class=high."
    )

    @property
    def half_life_s(self) -> float:
        """The half-life in seconds."""
        return self.half_life_h * 3600


def _site_qos(name: str) -> str:
    """Return a site's QOS name as slurmdbd stores it, in small letters.

    ValueError for what is no such name, or begins with "slicewise".
    """
    if not re.fullmatch(r"[A-Za-z0-9._-]{1,64}", name) or name.lower().startswith("slicewise"):
        raise ValueError("write the name of a QOS of the site")
    return name.lower()


SiteQos = Annotated[str, AfterValidator(_site_qos)]


def _once(names: object) -> object:
    if isinstance(names, dict) and len({str(name).lower() for name in names}) < len(names):
        raise ValueError("one QOS is named twice: Slurm ignores the case of its name")
    return names


def _folder_of_nodes(folder: Path) -> Path:
    # Apptainer separates the parts of a mount by : and ,
    if not re.fullmatch(r"/[A-Za-z0-9_./@%+=-]+", str(folder)) or ".." in folder.parts:
        raise ValueError("write an absolute path of letters, digits and _ . / @ % + = -")
    return folder


class LauncherSettings(Section):
    """[launcher]: whether it has a partner, what it keeps; docs/explanation/services.md."""

    pair: bool = Field(
        False, description="A launcher runs on each of two hosts; only the one that leads acts."
    )
    metrics: Address = Field("", description="HOST:PORT of Prometheus metrics; empty: none.")
    url_file: Path | None = Field(
        None,
        description="File with the URL of the launcher's own database; without a database, a "
        "restart loses what it has learnt.",
    )
    node_cache: Annotated[Path, AfterValidator(_folder_of_nodes)] | None = Field(
        None,
        description="Folder on a disk of each node, root's with mode 1777, in which services keep "
        "copies of their models' files; unset: servers read model_repository.",
    )
    node_cache_gib: int = Field(
        256,
        ge=1,
        le=1_000_000,
        description="GiB that the services of one user may keep there on each node.",
    )

    @property
    def node_cache_bytes(self) -> int:
        """Bytes that the services of one user may keep on each node."""
        return self.node_cache_gib << 30


FindingCode = Annotated[str, Field(pattern=r"^SW(-[A-Z]+)+$")]


class DoctorSettings(Section):
    """[doctor]: what slicewise doctor need not say; docs/how-to/runbooks.md."""

    accept: tuple[FindingCode, ...] = Field(
        (),
        description="Codes of findings that the site knows and leaves as they are: they are"
        " counted, and no longer shown.",
    )


class OidcSettings(Section):
    """[web.oidc]: logins on the page by an OpenID provider."""

    issuer: str = Field(
        "",
        pattern=r"^(https?://[^\s?#]+)?$",
        description="The provider's issuer, as its discovery document says it; empty: none.",
    )
    client_id: str = Field("", description="What the provider calls this page.")
    client_secret_file: Path | None = Field(
        None, description="File with the client's secret, which web.user can read."
    )
    claim: str = Field(
        "preferred_username",
        min_length=1,
        description="Claim of the id_token that holds the name of a user of this host. Take one"
        " that people can't choose themselves.",
    )
    scope: str = Field("openid profile", description="What the provider is asked for.")
    tenant_claim: str = Field(
        "",
        description="Claim of the id_token that names tenants of people who are no users of this"
        " host; they make keys of these tenants on the page, and see nothing else. Empty: none.",
    )
    claimed_tenants: tuple[_Tenant, ...] = Field(
        (), description="The only tenants that tenant_claim may name."
    )
    tenant_claim_days: int = Field(
        30,
        ge=1,
        le=366,
        description="Days without a login after which the keys of such a person let nothing in.",
    )

    @model_validator(mode="after")
    def _is_whole(self) -> Self:
        if not self.issuer:
            return self
        if not self.client_id or self.client_secret_file is None:
            raise ValueError("issuer: needs client_id and client_secret_file")
        if "openid" not in self.scope.split():
            raise ValueError('scope: must hold "openid"')
        if not self.issuer.startswith("https://") and not _is_local(self.issuer):
            raise ValueError("issuer: must be an https address")
        return self

    @model_validator(mode="after")
    def _tenants_are_allowed(self) -> Self:
        if self.tenant_claim and not self.claimed_tenants:
            raise ValueError("tenant_claim: needs claimed_tenants, which it may name")
        return self


def _is_local(url: str) -> bool:
    host = urlsplit(url).hostname or ""
    return is_loopback(f"[{host}]:1" if ":" in host else f"{host}:1")


def _network(text: str) -> str:
    ip_network(text)
    return text


Network = Annotated[str, AfterValidator(_network)]
"""An address such as ``10.0.0.1``, or a network such as ``10.0.0.0/24``."""


class WebSettings(Section):
    """[web]: the page in the browser; docs/how-to/web.md."""

    listen: LoopbackAddress = Field(
        "",
        description="Loopback address and port of the page; empty: there is none. A proxy on the"
        " same host speaks https to browsers.",
    )
    url: str = Field(
        "",
        pattern=r"^(https?://[^/\s?#]+)?$",
        description="Address that browsers use, that of the proxy before the page:"
        " https://slicewise.example.org. It needs a host name of its own.",
    )
    user: str = Field(
        "slicewise-web",
        description="As whom the web server runs; the daemon lets it ask for users.",
    )
    operators: tuple[str, ...] = Field(
        (), description="Users who see on the page what root and SlurmUser see, beside these."
    )
    proxies: tuple[Network, ...] = Field(
        (),
        description="Addresses or networks of reverse proxies before the page. With the secret of"
        " proxy_secret_file their X-Forwarded-For says for whom a request is counted.",
    )
    proxy_header: str = Field(
        "",
        pattern=r"^[A-Za-z0-9-]*$",
        description="Header in which these proxies name the user whom they have logged in, such as"
        " X-Remote-User; empty: none does. From elsewhere it is refused.",
    )
    proxy_secret_file: Path | None = Field(
        None,
        description="File with a secret that proxies send in the header X-Slicewise-Secret, so that"
        " nobody else on their hosts can name a user, or be counted as another host.",
    )
    realm: str = Field(
        "",
        pattern=r"^[A-Za-z0-9.-]*$",
        description="Realm that proxies and the OpenID provider put behind names: alice@REALM is"
        " alice. Names with another one are refused.",
    )
    change_keys: bool = Field(
        True,
        description="Whether users make, limit and end their own keys on the page. Nothing else is"
        " changed there.",
    )
    oidc: OidcSettings = OidcSettings()

    @model_validator(mode="after")
    def _proxies_are_known(self) -> Self:
        if self.proxies and not self.proxy_secret_file:
            raise ValueError(
                "proxies: need proxy_secret_file, since every user of a proxy's host can connect"
                " as it does (docs/how-to/web.md)"
            )
        if self.proxy_header and not self.proxies:
            raise ValueError("proxy_header: needs proxies, from which it is believed")
        return self

    @property
    def proxy_networks(self) -> tuple[IPv4Network | IPv6Network, ...]:
        """``proxies`` as networks."""
        return tuple(ip_network(proxy) for proxy in self.proxies)

    @property
    def address(self) -> str:
        """The page's address in browsers, without a slash at its end; "" without a page."""
        if not self.listen:
            return ""
        return self.url or f"http://{self.listen}"


class MarketplaceSettings(Section):
    """[marketplace]: the door for a marketplace's agent; docs/how-to/marketplace.md."""

    listen: LoopbackAddress = Field(
        "",
        description="Loopback address and port where the daemon answers the agent; empty: none. A"
        " proxy on the same host speaks https.",
    )
    tokens: Mapping[_Tenant, Path] = Field(
        {},
        description="For each tenant, whose keys the agent may make, a file with a token of 32"
        " bytes at least that only SlurmUser and root can read; read at each question.",
    )


class Settings(Section):
    """The whole file."""

    cluster: ClusterSettings
    gpus: Mapping[str, GpuSettings] = Field(min_length=1)
    shared: SharedSettings = SharedSettings()
    daemon: DaemonSettings = DaemonSettings()
    database: DatabaseSettings = DatabaseSettings()
    ledger: LedgerSettings = LedgerSettings()
    admission: AdmissionSettings = AdmissionSettings()
    placement: PlacementSettings = PlacementSettings()
    priority: PrioritySettings = PrioritySettings()
    gateway: GatewaySettings = GatewaySettings()
    engines: Mapping[EngineName, EngineSettings] = {}
    launcher: LauncherSettings = LauncherSettings()
    repartition: RepartitionSettings = RepartitionSettings()
    lending: LendingSettings = LendingSettings()
    energy: EnergySettings = EnergySettings()
    doctor: DoctorSettings = DoctorSettings()
    web: WebSettings = WebSettings()
    marketplace: MarketplaceSettings = MarketplaceSettings()
    log: LogSettings = LogSettings()
    qos: Annotated[Mapping[SiteQos, JobClass], BeforeValidator(_once)] = Field(
        {}, description="Class of GPU jobs that name this QOS of the site, by QOS."
    )

    @model_validator(mode="after")
    def _types_are_unambiguous(self) -> Self:
        types = [gres_type for gpu in self.gpus.values() for gres_type in (*gpu.types, *gpu.whole)]
        types += SHARED
        twice = sorted({gres_type for gres_type in types if types.count(gres_type) > 1})
        if twice:
            raise ValueError(
                f"gpus: type {', '.join(twice)} is listed for two models, but Slurm bills by type; "
                "give the nodes' GRES types distinct names"
            )
        if self.admission.untyped in SHARED:
            raise ValueError("admission.untyped: name a type of GPUs that jobs do not share")
        return self

    @model_validator(mode="after")
    def _bills_whole_numbers(self) -> Self:
        for gres_type, cost in self.costs.items():
            billed = self.billing.exact(cost)
            if billed.denominator != 1:
                nearest = " and ".join(map(str, self.billing.nearest(self.costs.values())))
                raise ValueError(
                    f"cluster.billing_per_slice: {self.billing.per_slice} would bill {billed} for "
                    f"{gres_type}, which costs {slices_words(cost)}, but Slurm limits whole "
                    f"numbers; the nearest values that bill whole numbers for all types: {nearest}"
                )
        return self

    @cached_property
    def billing(self) -> BillingUnit:
        """The unit in which Slurm bills slices."""
        return BillingUnit(self.cluster.billing_per_slice)

    @cached_property
    def costs(self) -> Mapping[str, Millislices]:
        """Millislices of one instance, one whole GPU, or one part of a shared one, by GRES type."""
        whole = {kind: whole_cost(gpu.weight) for gpu in self.gpus.values() for kind in gpu.whole}
        of_instances = {
            gres_type: cost_millislices(board(model), gres_type, gpu.weight)
            for model, gpu in self.gpus.items()
            for gres_type in gpu.types
        }
        return {**of_instances, **whole, **self.shared.costs}

    @cached_property
    def whole_boards(self) -> Mapping[str, WholeBoard]:
        """The whole board that each GRES type of MIG instances is a part of.

        Without boards that are never repartitioned: their nodes have no pads, and count what they
        have.
        """
        return {
            gres_type: whole_board(on, self.gpus[on.model].weight)
            for gres_type, on in self.boards_by_type.items()
            if accelerator(on.vendor).has_parts
        }

    @cached_property
    def models(self) -> Mapping[str, str]:
        """The GPU model of each GRES type."""
        return {k: model for model, gpu in self.gpus.items() for k in (*gpu.types, *gpu.whole)}

    @cached_property
    def whole_types(self) -> Mapping[str, str]:
        """The first GRES type of whole GPUs, by model; models without one are left out."""
        return {model: gpu.whole[0] for model, gpu in self.gpus.items() if gpu.whole}

    @cached_property
    def memory_mib(self) -> Mapping[str, int | None]:
        """MiB of GPU memory that a process sees, by GRES type; None where no source gives it."""
        return {
            kind: profile_of(on, kind).memory_mib for kind, on in self.boards_by_type.items()
        } | {
            kind: whole_memory_mib(model) for model, gpu in self.gpus.items() for kind in gpu.whole
        }

    @cached_property
    def boards_by_type(self) -> Mapping[str, Board]:
        """The board of each GRES type of MIG instances."""
        return {t: board(model) for model, gpu in self.gpus.items() for t in gpu.types}
