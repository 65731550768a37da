"""Checks the gateway and the launcher of this host, for the doctor."""

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

from slicewise.cluster.language.codes import Code
from slicewise.cluster.language.file_access import Need, unmet
from slicewise.cluster.language.findings import Finding, Mend, Place, error, hint, warning
from slicewise.cluster.language.host_findings import (
    Holder,
    Space,
    held_by_others,
    space_checks,
    unit_checks,
)

SOON_S = 14 * 86400
"""Seconds before a certificate's end from which on it is said."""
_NEARLY_ALL_FILES = 0.98
"""HAProxy rounds what its limit of open files allows: it says 4,095 where it may have 4,096."""
_OLDEST = (2, 6)
_RENDER = Mend(Place.GATEWAY, "slicewise gateway render --check")
_RELOAD = Mend(Place.GATEWAY, "systemctl reload haproxy")
_BIND_CONF = "/etc/systemd/system/haproxy-slicewise.socket.d/bind.conf"
_ANY_HOSTS = ("", "*", "0.0.0.0", "[::]")  # noqa: S104 -- compared only
_MAY_HOLD = ("haproxy", "systemd")
_RESTART = Mend(Place.GATEWAY, "systemctl restart slicewise-launcher")


@dataclass(frozen=True)
class CertificateFacts:
    """gateway.certificate, as a client would find it.

    Attributes:
        host: by what name clients ask for the gateway: that of gateway.url.
        problem: why it can't be used with its key; "" if it can.
        ends_s: Unix second of its end; 0 if that is over.
        is_named: whether it is for ``host``.
        is_issuer_known: whether the certificates in the file lead to one that this host trusts, or
            that has signed itself.
        is_shown: whether HAProxy shows it; True also if none answers.
    """

    file: str
    host: str
    problem: str = ""
    ends_s: float = 0.0
    is_named: bool = True
    is_issuer_known: bool = True
    is_shown: bool = True


@dataclass(frozen=True)
class IdentityFacts:
    """gateway.identity, by which replicas know the gateway.

    Attributes:
        has_key: whether the gateway's key is on this host.
        is_own: whether it is that of the gateway's key; True where the key is elsewhere.
    """

    file: str
    is_there: bool = True
    has_key: bool = True
    is_certificate: bool = True
    is_own: bool = True


@dataclass(frozen=True)
class GatewayFacts:
    """The gateway's files, its HAProxy and the launcher, as they are on this host.

    Attributes:
        stale: files of the gateway's directory that are not what would be rendered now.
        ends_s: Unix seconds at which certificates between gateway and replicas end, by file.
        certificate: that for clients; None without one.
        identity: what replicas know the gateway by; None if it was not looked at.
        version: HAProxy's, as it says; "" if it does not answer.
        loaded_s, rendered_s: Unix seconds at which HAProxy's process began, and at which its
            configuration was written; 0 if unknown.
        launcher_s, program_s: Unix seconds at which the launcher began, and at which its program
            was installed; ``launcher_s`` is None if none runs here.
        rendered_files: for how many open files its configuration was rendered; 0 if unknown.
        running_files: how many the running HAProxy has made room for, as it says; 0 if unknown.
        is_other: whether HAProxy runs with the configuration of another directory.
        has_master: whether HAProxy's master socket is there.
        bind: gateway.bind.
        held: the address that systemd holds open for HAProxy; "" if it holds none.
        holders: who listens on the port of ``bind``.
        haproxy_users: as whom HAProxy, and systemd for it, may do so.
        url, answered: gateway.url, and who answers there in place of the gateway: a status with
            the server's name, "nobody", or "" if the gateway does, or if that is unknown.
        launchers_as: as which other users launchers run here.
        stopped: process ids of launchers that a signal has stopped.
        needs: what the users of launcher and HAProxy must be able to do with files.
        spaces: room in the folders that are written to.
        disabled: units of systemd that are here and do not start with the host.
    """

    stale: tuple[str, ...] = ()
    ends_s: Mapping[str, float] = field(default_factory=dict, hash=False)
    version: str = ""
    loaded_s: float = 0.0
    rendered_s: float = 0.0
    rendered_files: int = 0
    running_files: int = 0
    launcher_s: float | None = None
    program_s: float = 0.0
    is_other: bool = False
    has_master: bool = True
    bind: str = ""
    held: str = ""
    certificate: CertificateFacts | None = None
    identity: IdentityFacts | None = None
    holders: tuple[Holder, ...] = ()
    haproxy_users: tuple[str, ...] = ("root",)
    url: str = ""
    answered: str = ""
    launchers_as: tuple[str, ...] = ()
    stopped: tuple[int, ...] = ()
    needs: tuple[Need, ...] = ()
    spaces: tuple[Space, ...] = ()
    disabled: tuple[str, ...] = ()


def gateway_checks(facts: GatewayFacts, owners: str, now_s: float) -> tuple[Finding, ...]:
    """Return what is wrong; ``owners`` are the options with which its files were rendered."""
    return (
        *_stale(facts, owners),
        *_certificates(facts.ends_s, now_s),
        *(_for_clients(facts.certificate, now_s) if facts.certificate else ()),
        *(identity_checks(facts.identity) if facts.identity else ()),
        *_haproxy(facts),
        *_port(facts),
        *_holders(facts),
        *_url(facts),
        *unmet(facts.needs),
        *space_checks(facts.spaces),
        *unit_checks(facts.disabled),
        *_launcher(facts),
        *_master(facts),
    )


def _stale(facts: GatewayFacts, owners: str) -> Iterator[Finding]:
    if facts.stale:
        yield warning(
            Code.GATEWAY_STALE,
            f"{', '.join(facts.stale)} of gateway.directory are not what would be rendered now",
            "settings or Slicewise have changed since",
            Mend(Place.GATEWAY, f"slicewise gateway render --check{owners}"),
            _RELOAD,
        )


def _certificates(ends_s: Mapping[str, float], now_s: float) -> Iterator[Finding]:
    for file, end_s in ends_s.items():
        days = (end_s - now_s) / 86400
        if end_s <= now_s:
            yield error(
                Code.CERTIFICATE,
                f"The certificate in {file} has ended",
                "clients or replicas refuse the gateway",
                _RELOAD,
                advice="Put a new one there first: docs/how-to/gateway.md.",
            )
        elif end_s - now_s < SOON_S:
            yield warning(
                Code.CERTIFICATE,
                f"The certificate in {file} ends in {days:.0f} days",
                "clients or replicas will refuse the gateway",
                _RELOAD,
                advice="Put a new one there first: docs/how-to/gateway.md.",
            )


def _for_clients(facts: CertificateFacts, now_s: float) -> Iterator[Finding]:
    refused = "clients refuse the gateway"
    if facts.problem:
        yield error(
            Code.CERTIFICATE,
            f"{facts.file} and its key can't be used: {facts.problem}",
            "HAProxy does not start, or will not start again",
            advice="gateway.certificate names a PEM file with certificate, chain and key.",
        )
        return
    yield from _certificates({facts.file: facts.ends_s}, now_s)
    if not facts.is_named:
        yield error(
            Code.CERTIFICATE,
            f"The certificate in {facts.file} is not for {facts.host}, the host of gateway.url",
            refused,
            advice="Get one for that name, or name in gateway.url what it is for.",
        )
    if not facts.is_issuer_known:
        yield hint(
            Code.CERTIFICATE,
            f"The certificates in {facts.file} lead to none that this host trusts",
            "clients who were not given who signed it refuse the gateway",
            advice="Put the certificates between it and its authority behind it, in that file.",
        )
    if not facts.is_shown:
        yield warning(
            Code.CERTIFICATE,
            f"HAProxy shows another certificate than the one in {facts.file}",
            "it reads certificates at its start only, and the one that it shows may end",
            _RELOAD,
        )


def identity_checks(facts: IdentityFacts) -> Iterator[Finding]:
    """Say why replicas would not know the gateway by gateway.identity."""
    made = Mend(Place.GATEWAY, "slicewise gateway render --check")
    copy = "Copy it from the gateway's host to all hosts where services are applied."
    if not facts.is_there:
        if facts.has_key:
            yield error(
                Code.GATEWAY_IDENTITY,
                f"There is no {facts.file}, which gateway.identity names",
                "no service can be applied",
                made,
                advice=copy,
            )
    elif not facts.is_certificate:
        yield error(
            Code.GATEWAY_IDENTITY,
            f"{facts.file}, which gateway.identity names, holds no certificate",
            "no service can be applied",
            made,
            advice=copy,
        )
    elif not facts.is_own:
        yield error(
            Code.GATEWAY_IDENTITY,
            f"{facts.file} is not the certificate of the gateway's key",
            "replicas that are started with it let the gateway in no more, and never get ready",
            made,
            advice=f"{copy} Then slicewise service apply --force for services that were applied"
            " with the other one.",
        )


def _holders(facts: GatewayFacts) -> Iterator[Finding]:
    host, _, port = facts.bind.rpartition(":")
    if not port.isdecimal():
        return
    place, users = (host.strip("[]"), int(port)), facts.haproxy_users
    for holder in held_by_others(facts.holders, *place, users, _MAY_HOLD)[:1]:
        yield error(
            Code.GATEWAY_PORT,
            f"{holder.text} listens on port {port}, and gateway.bind is {facts.bind}",
            "HAProxy does not start, and clients reach that program",
            Mend(Place.GATEWAY, f"ss -ltnp sport = :{port}"),
            advice="End that program, or name a free port in gateway.bind and gateway.url.",
        )


def _url(facts: GatewayFacts) -> Iterator[Finding]:
    if facts.answered:
        is_nobody = facts.answered == "nobody"
        who = "Nobody" if is_nobody else f"Another server than the gateway ({facts.answered})"
        yield warning(
            Code.GATEWAY_PORT,
            f"{who} answers at gateway.url {facts.url}; gateway.bind is {facts.bind}",
            "clients are told that address, and as this host sees it the gateway is not there",
            advice="Name in gateway.url where clients reach gateway.bind, or let what stands there"
            " pass requests on to it.",
        )


def _haproxy(facts: GatewayFacts) -> Iterator[Finding]:
    match = re.match(r"(\d+)\.(\d+)", facts.version)
    if match and (int(match[1]), int(match[2])) < _OLDEST:
        yield error(
            Code.VERSION,
            f"HAProxy is version {facts.version}",
            "the configuration needs 2.6 or newer",
            advice="Install HAProxy 2.6 or newer, with Lua.",
        )
    if facts.is_other:
        yield error(
            Code.GATEWAY_DOWN,
            "HAProxy runs with another configuration than the one in gateway.directory",
            "it knows no service, and the launcher can't tell it of one",
            advice="End what was started by hand, and start HAProxy with the rendered one:"
            " docs/how-to/gateway.md.",
        )
    elif facts.loaded_s and facts.rendered_s > facts.loaded_s + 1:
        yield warning(
            Code.GATEWAY_STALE,
            "HAProxy runs with an older configuration than the one in gateway.directory",
            "what was rendered since is not in force",
            _RENDER,
            _RELOAD,
        )
    elif 0 < facts.running_files < facts.rendered_files * _NEARLY_ALL_FILES:
        yield warning(
            Code.GATEWAY_FILES,
            f"HAProxy may have {facts.running_files:,} open files, and its configuration was"
            f" rendered for {facts.rendered_files:,}",
            "clients can take all of its connections, with none left between its own parts",
            advice=f"Set LimitNOFILE={facts.rendered_files} in HAProxy's unit (systemctl edit"
            " haproxy) and restart it, or render again in a shell with its limit (ulimit -n).",
        )


def _port(facts: GatewayFacts) -> Iterator[Finding]:
    if facts.held and _address(facts.held) != _address(facts.bind):
        lines = f"[Socket]\\nListenStream=\\nListenStream={facts.bind}"
        yield error(
            Code.GATEWAY_PORT,
            f"systemd holds {facts.held} open for HAProxy, and gateway.bind is {facts.bind}",
            "HAProxy then listens where systemd does, and clients may not reach it",
            Mend(Place.GATEWAY, f"install -D -m 644 /dev/stdin {_BIND_CONF} <<< $'{lines}'"),
            Mend(Place.GATEWAY, "systemctl daemon-reload && systemctl stop haproxy"),
            Mend(Place.GATEWAY, "systemctl restart haproxy-slicewise.socket"),
            Mend(Place.GATEWAY, "systemctl start haproxy"),
        )


def _address(text: str) -> tuple[str, str]:
    """Return host and port; all ways to say any host are one."""
    host, _, port = text.rpartition(":")
    return ("" if host in _ANY_HOSTS else host, port)


def _launcher(facts: GatewayFacts) -> Iterator[Finding]:
    if facts.launcher_s is None:
        others = f"; one runs as {', '.join(facts.launchers_as)}" if facts.launchers_as else ""
        yield error(
            Code.LAUNCHER_DOWN,
            f"No launcher runs on this host as [daemon] launcher_user{others}",
            "services neither start nor end replicas",
            Mend(Place.GATEWAY, "systemctl start slicewise-launcher"),
            advice="It belongs beside HAProxy.",
        )
    elif facts.stopped:
        pids = " ".join(map(str, facts.stopped))
        yield error(
            Code.LAUNCHER_DOWN,
            f"The launcher was stopped by a signal (pid {pids})",
            "services neither start nor end replicas until it goes on",
            Mend(Place.GATEWAY, f"kill -CONT {pids}"),
        )
    elif facts.program_s > facts.launcher_s:
        yield warning(
            Code.RESTART,
            "The launcher began before its program was installed",
            "it runs another version than the commands",
            _RESTART,
        )


def _master(facts: GatewayFacts) -> Iterator[Finding]:
    if not facts.has_master:
        yield hint(
            Code.GATEWAY_MASTER,
            "HAProxy has no master socket beside gateway.runtime_socket",
            "after a reload of HAProxy the launcher does not see the requests that the replaced"
            " process still has, and may end the replicas that answer them",
            advice="Start HAProxy with option -S: docs/how-to/gateway.md.",
        )
