"""Checks the gateway and the launcher of this host, for the doctor."""

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

from cluster.language.codes import Code
from cluster.language.findings import Finding, Mend, Place, error, hint, warning

SOON_S = 14 * 86400
"""Seconds before a certificate's end from which on it is said."""
_OLDEST = (2, 6)
_RENDER = Mend(Place.GATEWAY, "slicewise gateway render --check")
_RELOAD = Mend(Place.GATEWAY, "systemctl reload haproxy")
_BIND_CONF = "/etc/systemd/system/haproxy-slicewise.socket.d/bind.conf"
_ANY_HOSTS = ("", "*", "0.0.0.0", "[::]")  # noqa: S104 -- compared only
_RESTART = Mend(Place.GATEWAY, "systemctl restart slicewise-launcher")


@dataclass(frozen=True)
class GatewayFacts:
    """The gateway's files, its HAProxy and the launcher, as they are on this host.

    Attributes:
        stale: files of the gateway's directory that are not what would be rendered now.
        ends_s: Unix seconds at which each certificate ends, by its file.
        version: HAProxy's, as it says; "" if it does not answer.
        loaded_s, rendered_s: Unix seconds at which HAProxy's process began, and at which its
            configuration was written; 0 if unknown.
        launcher_s, program_s: Unix seconds at which the launcher began, and at which its program
            was installed; ``launcher_s`` is None if none runs here.
        has_master: whether HAProxy's master socket is there.
        bind: gateway.bind.
        held: the address that systemd holds open for HAProxy; "" if it holds none.
    """

    stale: tuple[str, ...] = ()
    ends_s: Mapping[str, float] = field(default_factory=dict, hash=False)
    version: str = ""
    loaded_s: float = 0.0
    rendered_s: float = 0.0
    launcher_s: float | None = None
    program_s: float = 0.0
    has_master: bool = True
    bind: str = ""
    held: str = ""


def gateway_checks(facts: GatewayFacts, owners: str, now_s: float) -> tuple[Finding, ...]:
    """Return what is wrong; ``owners`` are the options with which its files were rendered."""
    return (
        *_stale(facts, owners),
        *_certificates(facts.ends_s, now_s),
        *_haproxy(facts),
        *_port(facts),
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


def _haproxy(facts: GatewayFacts) -> Iterator[Finding]:
    found = re.match(r"(\d+)\.(\d+)", facts.version)
    if found and (int(found[1]), int(found[2])) < _OLDEST:
        yield error(
            Code.VERSION,
            f"HAProxy is version {facts.version}",
            "the configuration needs 2.6 or newer",
            advice="Install HAProxy 2.6 or newer, with Lua.",
        )
    if facts.loaded_s and facts.rendered_s > facts.loaded_s + 1:
        yield warning(
            Code.GATEWAY_STALE,
            "HAProxy runs with an older configuration than the one in gateway.directory",
            "what was rendered since is not in force",
            _RENDER,
            _RELOAD,
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
        yield error(
            Code.LAUNCHER_DOWN,
            "No launcher runs on this host as [daemon] launcher_user",
            "services neither start nor end replicas",
            Mend(Place.GATEWAY, "systemctl start slicewise-launcher"),
            advice="It belongs beside HAProxy.",
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
