"""Checks the page in the browser: its server, what it reads, its ways in."""

from collections.abc import Iterator

from slicewise.cluster.language.codes import Code
from slicewise.cluster.language.file_access import unmet
from slicewise.cluster.language.findings import Finding, Mend, Place, error, warning
from slicewise.slurm_plugin.rules.site.facts import WebFacts


def web_checks(facts: WebFacts) -> tuple[Finding, ...]:
    """Return what is wrong with the page."""
    return (
        *_server(facts),
        *unmet(facts.needs),
        *_plain(facts),
        *_name(facts),
    )


def _server(facts: WebFacts) -> Iterator[Finding]:
    if not facts.has_user:
        yield error(
            Code.USER,
            f"This host has no user {facts.user}, which [web] user names",
            "the page's server runs as that user, and the daemon knows it by its uid",
            Mend(Place.HOST, f"useradd --system --user-group --no-create-home {facts.user}"),
        )
    if facts.answered == "nobody":
        yield error(
            Code.WEB_DOWN,
            f"No server answers at {facts.listen}, which [web] listen names",
            "nobody sees the page",
            Mend(Place.WEB, "systemctl enable --now slicewise-web"),
            advice='If it does not stay: journalctl -u slicewise-web. Without a page: listen = "".',
        )
    elif facts.answered == "another":
        yield error(
            Code.WEB_TAKEN,
            f"{facts.held_by or 'Another program'} listens at {facts.listen}, which [web] listen"
            " names",
            "nobody sees the page, and that program gets its sessions and the proxy's secret",
            Mend(Place.WEB, "systemctl enable --now slicewise-web.socket"),
            advice="End that program first, and make another proxy_secret_file; or name a free port"
            " in [web] listen.",
        )


def _plain(facts: WebFacts) -> Iterator[Finding]:
    if facts.is_plain:
        yield warning(
            Code.WEB_PLAIN,
            "Browsers reach the page by http, from other hosts, too",
            "whoever can listen in between can be whoever is logged in",
            advice="Let the proxy before it speak https, and name that address in [web] url.",
        )


def _name(facts: WebFacts) -> Iterator[Finding]:
    if facts.shared_name:
        yield warning(
            Code.WEB_NAME,
            f"The page and the gateway are both at {facts.shared_name}",
            "browsers send the page's cookies to the gateway, too, which deletes them; whatever"
            " else stands there gets them",
            advice="Give the page a host name of its own, in DNS, its certificate and [web] url.",
        )
