"""Findings about a site: each has a stable code, what is wrong, why that matters, what mends it."""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from enum import StrEnum

from slicewise.cluster.language.codes import Code
from slicewise.cluster.language.errors import SlicewiseError
from slicewise.cluster.language.exit_codes import ExitCode


class Severity(StrEnum):
    """How bad a finding is."""

    ERROR = "error"
    """Something does not work, or does not hold, until this is mended."""
    WARNING = "warning"
    """It works, and will fail or harm somebody under some circumstances."""
    HINT = "hint"
    """A choice that the site should have made knowingly."""


class Place(StrEnum):
    """Where a line or a command that mends something goes, in the order in which to apply them.

    With JobSubmitPlugins=lua slurmctld does not start without job_submit.lua: that comes first.
    """

    HOST = "host"
    DATABASE = "database"
    SETTINGS = "slicewise.toml"
    SCRIPT = "job_submit.lua"
    SLURM_CONF = "slurm.conf"
    CGROUP_CONF = "cgroup.conf"
    RESTART = "restart"
    ACCOUNTS = "sacctmgr"
    DAEMON = "daemon"
    WEB = "page"
    GATEWAY = "gateway"
    NODE = "node"


TITLES: Mapping[Place, str] = {
    Place.HOST: "on this host, as root",
    Place.DATABASE: "the ledger's database",
    Place.SETTINGS: "slicewise.toml",
    Place.SCRIPT: "job_submit.lua, on slurmctld's host",
    Place.SLURM_CONF: "slurm.conf, with all that it includes: in place of each line of that key",
    Place.CGROUP_CONF: "cgroup.conf, the same on all nodes",
    Place.RESTART: "make Slurm read them",
    Place.ACCOUNTS: "accounts, QOS and limits",
    Place.DAEMON: "the daemon",
    Place.WEB: "the server of the page in the browser",
    Place.GATEWAY: "the gateway and the launcher, on their host",
    Place.NODE: "the GPU node",
}
"""What to say before the lines of each place."""


@dataclass(frozen=True)
class Mend:
    """One line of a file, or one command, that mends something."""

    place: Place
    line: str


_DELETION = "# delete each line of "


def deletion(place: Place, key: str) -> Mend:
    """Return what to do with a setting that is to have no value: a key without one is no line."""
    return Mend(place, f"{_DELETION}{key}")


def key_of(line: str) -> str:
    """Return the line from its key on, also of one that is to go."""
    return line.removeprefix(_DELETION)


def setting(section: str, line: str) -> Mend:
    """Return a line of slicewise.toml, which is TOML; a comment names the section it goes into."""
    return Mend(Place.SETTINGS, f"{line}    # in [{section}]")


@dataclass(frozen=True)
class Finding:
    """Something about the site that is not as it should be.

    Attributes:
        code: which kind of remedy it needs.
        what: what is wrong, without the full stop.
        why: why it matters, in the same way; "" where that is in ``what``.
        advice: whole sentences on what to do, where the lines alone do not say it; or "".
        mends: the lines to add and the commands to run.
    """

    code: Code
    severity: Severity
    what: str
    why: str = ""
    advice: str = ""
    mends: tuple[Mend, ...] = ()

    @property
    def text(self) -> str:
        """All of it but the mends, in one line."""
        sentence = f"{self.what}: {self.why}." if self.why else f"{self.what}."
        return " ".join(part for part in (sentence, self.advice, f"[{self.code}]") if part)


@dataclass(frozen=True)
class SectionReport:
    """What was found in one section of a site.

    Attributes:
        skipped: why nothing was looked at, on this host; "" if it was.
    """

    section: str
    findings: tuple[Finding, ...] = ()
    skipped: str = ""


def error(code: Code, what: str, why: str = "", *mends: Mend, advice: str = "") -> Finding:
    """Return a finding of severity error."""
    return Finding(code, Severity.ERROR, what, why, advice, mends)


def warning(code: Code, what: str, why: str = "", *mends: Mend, advice: str = "") -> Finding:
    """Return a finding of severity warning."""
    return Finding(code, Severity.WARNING, what, why, advice, mends)


def hint(code: Code, what: str, why: str = "", *mends: Mend, advice: str = "") -> Finding:
    """Return a finding of severity hint."""
    return Finding(code, Severity.HINT, what, why, advice, mends)


def failure(raised: SlicewiseError, severity: Severity = Severity.ERROR) -> Finding:
    """Return a finding for what could not be read, with the failure's own code and words."""
    refusal = raised.refusal
    what = " ".join(refusal.message.split()).removesuffix(".")
    return Finding(refusal.code, severity, what, advice=refusal.hint)


def ordered(findings: Iterator[Finding] | tuple[Finding, ...]) -> tuple[Finding, ...]:
    """Return the findings without repetitions, the worst first."""
    ranks = list(Severity)
    return tuple(sorted(dict.fromkeys(findings), key=lambda finding: ranks.index(finding.severity)))


def exit_code_by(severities: Iterable[Severity]) -> ExitCode:
    """Return the exit code of a command that has found something, by the worst that it found."""
    severity_set = set(severities)
    if Severity.ERROR in severity_set:
        return ExitCode.FAILED
    return ExitCode.WARNED if Severity.WARNING in severity_set else ExitCode.DONE
