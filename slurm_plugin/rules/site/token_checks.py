"""Checks what commands of other hosts need to ask by https: Slurm's tokens, a certificate."""

from collections.abc import Iterable, Iterator

from slicewise.cluster.language.codes import Code
from slicewise.cluster.language.findings import Finding, Mend, Place, error, setting, warning
from slicewise.slurm_plugin.rules.site.facts import ShownCertificate, TokenFacts
from slicewise.slurm_plugin.rules.slurm_config.conf_words import conf_line, conf_words

_SOON_S = 14 * 86400
"""Seconds before a certificate's end from which on it is said."""
_RESTART = Mend(Place.DAEMON, "systemctl restart slicewise-daemon")


def token_checks(facts: TokenFacts) -> Iterator[Finding]:
    """Say where Slurm and the daemon have different keys for tokens."""
    if not facts.known_by or facts.known_by == facts.signed_by:
        return
    if facts.signed_by:
        yield warning(
            Code.TOKEN_KEY,
            f"Slurm signs its tokens with {facts.signed_by}, [daemon] slurm_jwt_key is"
            f" {facts.known_by}",
            "no token of Slurm's is believed, by the daemon or the page",
            setting("daemon", f'slurm_jwt_key = "{facts.signed_by}"'),
            _RESTART,
        )
    else:
        words = conf_words(facts.auth_alt, "AuthAltParameters")
        beside = [word for word in words if not word.startswith("jwt_key=")]
        yield warning(
            Code.TOKEN_KEY,
            "Slurm makes no tokens (AuthAltTypes has no auth/jwt), and [daemon] slurm_jwt_key is"
            " set",
            "whoever can read that key can make tokens for daemon and page, and nobody else",
            conf_line("AuthAltTypes", (*conf_words(facts.auth_alt, "AuthAltTypes"), "auth/jwt")),
            conf_line("AuthAltParameters", (*beside, f"jwt_key={facts.known_by}")),
            advice="Or without Slurm's tokens: no slurm_jwt_key in [daemon].",
        )


def certificate_checks(seen: Iterable[ShownCertificate], now_s: float) -> Iterator[Finding]:
    """Say which daemon's certificate commands of this host refuse, or soon will."""
    for facts in seen:
        if facts.problem:
            yield error(
                Code.CERTIFICATE,
                f"The certificate shown at {facts.place} is not to be believed here:"
                f" {facts.problem}",
                "commands of this host that ask the daemon there are refused before they ask",
                _RESTART,
                advice="Put one for that name into [daemon] certificate first, and what signs it"
                " into certificate_authority on every host.",
            )
        elif facts.ends_s - now_s < _SOON_S:
            days = (facts.ends_s - now_s) / 86400
            yield warning(
                Code.CERTIFICATE,
                f"The daemon's certificate at {facts.place} ends in {days:.0f} days",
                "commands and launcher of other hosts will not ask it any more",
                _RESTART,
                advice="Put a new one into [daemon] certificate first.",
            )
