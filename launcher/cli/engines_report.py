"""The doctor's section about engines: which are older than they should be, here and in replicas."""

from collections import defaultdict
from collections.abc import Collection, Iterator, Mapping
from contextlib import suppress
from pathlib import Path

from slicewise.cluster.language.codes import Code
from slicewise.cluster.language.errors import SlicewiseError
from slicewise.cluster.language.findings import Finding, SectionReport, warning
from slicewise.cluster.rpc.client import DaemonClient
from slicewise.cluster.rpc.messages import ViewRequest
from slicewise.cluster.runtime.section_look import looked
from slicewise.cluster.settings.engines import EngineSettings
from slicewise.cluster.settings.file import Settings
from slicewise.cluster.settings.read import load_settings
from slicewise.launcher.rules.engines.least_versions import LEAST_VERSIONS, is_too_old, upgrade
from slicewise.launcher.rules.engines.model_files import listed
from slicewise.launcher.rules.engines.registry import OWN_ENGINES
from slicewise.launcher.services.plain_file import open_file

SECTIONS = ("engines",)
_PACKAGE = ".dist-info"
_VERSION_BYTES = 100


def reports(
    sections: Collection[str], _node: str | None, _host_root: Path
) -> tuple[SectionReport, ...]:
    """Look at the engines of this host, and hear of those that replicas run."""
    if "engines" not in sections:
        return ()
    try:
        settings = load_settings()
    except SlicewiseError:
        return ()  # Another section says so.
    return (looked("engines", lambda: SectionReport("engines", tuple(_findings(settings)))),)


def _findings(settings: Settings) -> Iterator[Finding]:
    for name, engine in OWN_ENGINES.items():
        own = settings.engines.get(name, EngineSettings())
        command = Path(own.command or engine.command or "/")
        version = _installed(engine.title, command.parent.parent) if command.is_file() else ""
        if is_too_old(engine.title, version):
            yield _old(engine.title, f"{engine.title} {version} is installed here ({command})")
    for old, services in _served(settings).items():
        yield _old(old.rpartition(" ")[0], f"{old} serves {listed(services)}")


def _old(title: str, what: str) -> Finding:
    return warning(Code.VERSION, what, upgrade(title))


def _installed(title: str, prefix: Path) -> str:
    """Return the version that files beside an engine's server state; "" if none does."""
    pattern = LEAST_VERSIONS[title].stated_in
    for place in sorted(prefix.glob(pattern)) if pattern else ():
        if place.name.endswith(_PACKAGE):
            return place.name.removesuffix(_PACKAGE).partition("-")[2]
        # Whoever installs engines may be anybody: a link shows them no line of root's files.
        with suppress(OSError), open_file(place, is_link_followed=False) as file:
            words = file.read(_VERSION_BYTES).decode(errors="replace").split()
            return words[0] if words and words[0].isprintable() else ""
    return ""


def _served(settings: Settings) -> Mapping[str, list[str]]:
    """Return services whose replicas run an old engine, by that; the daemon heard of them."""
    try:
        reports = DaemonClient(settings.daemon).call(ViewRequest()).service_reports
    except SlicewiseError:
        return {}  # The daemon's section says so.
    services_by_engine = defaultdict[str, list[str]](list)
    for report in reports:
        if report.old_engine:
            services_by_engine[report.old_engine].append(f"{report.tenant}/{report.name}")
    return services_by_engine
