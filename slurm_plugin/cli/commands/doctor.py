"""The doctor's sections about Slurm, the ledger, the daemon, this host and its GPUs."""

import asyncio
import os
import sys
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import replace
from functools import cached_property
from importlib.metadata import version
from pathlib import Path

from slicewise.cluster.language.codes import Code
from slicewise.cluster.language.errors import InvalidInputError, SlicewiseError
from slicewise.cluster.language.file_access import unmet
from slicewise.cluster.language.findings import Finding, SectionReport, failure
from slicewise.cluster.language.host_findings import space_checks, unit_checks
from slicewise.cluster.language.jobs import NodeView
from slicewise.cluster.language.slurm.interface import Slurm
from slicewise.cluster.rpc.client import DaemonClient
from slicewise.cluster.rpc.key_messages import KeyListRequest
from slicewise.cluster.rpc.messages import StatusAnswer, StatusRequest
from slicewise.cluster.runtime.host_look import disabled_units
from slicewise.cluster.runtime.section_look import looked
from slicewise.cluster.runtime.together import together
from slicewise.cluster.runtime.wall_clock import wall_s
from slicewise.cluster.settings.engines import EngineSettings
from slicewise.cluster.settings.file import Settings, WebSettings
from slicewise.cluster.settings.read import (
    DATABASE_VARIABLE,
    database_url,
    load_settings,
    settings_file,
)
from slicewise.cluster.slurm.account_bounds import admins, qos_bounds
from slicewise.cluster.slurm.open import open_slurm
from slicewise.slurm_plugin.cli.commands.admission import (
    MODULE,
    has_old_lines,
    off_file,
    problem,
    site_script,
)
from slicewise.slurm_plugin.cli.commands.node import node_findings
from slicewise.slurm_plugin.cli.commands.this_host import (
    device_needs,
    engine_needs,
    host_facts,
    is_here,
    missing_programs,
    namespace_bars,
    node_cache_facts,
    node_spaces,
    slurmds_needs,
)
from slicewise.slurm_plugin.cli.commands.this_page import page_facts
from slicewise.slurm_plugin.cli.common.node_options import node_name
from slicewise.slurm_plugin.cli.common.opened_ledger import opened_ledger
from slicewise.slurm_plugin.cli.common.slurm_facts import slurm_facts
from slicewise.slurm_plugin.cli.views.limits import out_of_band_text
from slicewise.slurm_plugin.lua.site_script import named_module, version_of
from slicewise.slurm_plugin.page.proxy import secret_in
from slicewise.slurm_plugin.quota_cycle.compile import look
from slicewise.slurm_plugin.rules.common.ledger_facts import LedgerFacts
from slicewise.slurm_plugin.rules.common.qos_names import is_ours
from slicewise.slurm_plugin.rules.limits.desired import EXEMPT
from slicewise.slurm_plugin.rules.site.conf_checks import conf_checks, reserved_ports
from slicewise.slurm_plugin.rules.site.facts import (
    DaemonFacts,
    ScriptFacts,
    SlurmFacts,
    Wanted,
    WayBackFacts,
)
from slicewise.slurm_plugin.rules.site.host_checks import (
    clock_checks,
    daemon_checks,
    host_checks,
    key_checks,
    node_cache_checks,
    node_programs_checks,
)
from slicewise.slurm_plugin.rules.site.ledger_checks import ledger_checks, way_back_checks
from slicewise.slurm_plugin.rules.site.limit_checks import (
    admin_checks,
    bound_checks,
    capacity_checks,
    cluster_checks,
    drift_checks,
    exempt_checks,
    group_checks,
    minutes_checks,
    type_checks,
)
from slicewise.slurm_plugin.rules.site.partition_checks import by_mode, partition_checks
from slicewise.slurm_plugin.rules.site.script_checks import script_checks
from slicewise.slurm_plugin.rules.site.token_checks import certificate_checks
from slicewise.slurm_plugin.rules.site.web_checks import web_checks
from slicewise.slurm_plugin.rules.slurm_config.slurm_conf import closed_to_qos

SECTIONS = (
    *("settings", "slurm", "partitions", "limits", "script", "ledger", "daemon"),
    *("web", "nodes", "host"),
)
_EXAMPLE = Path(sys.prefix) / "share" / "slicewise" / "slicewise.toml"
_DUMP = "sacctmgr-before-slicewise.cfg"
_ELSEWHERE = "slurmctld runs on another host: run slicewise doctor there"
_NO_SLURM = "Slurm does not answer"


def reports(
    sections: Collection[str], node: str | None, host_root: Path
) -> tuple[SectionReport, ...]:
    """Look at each of the sections, whatever fails in the others.

    ``node`` is the node's name in slurm.conf, None for this host's.
    """
    site = _Site(node, host_root)
    looks: Mapping[str, Callable[[], SectionReport]] = {
        "settings": site.settings,
        "slurm": site.slurm,
        "partitions": site.partitions,
        "limits": site.limits,
        "script": site.script,
        "ledger": site.ledger,
        "daemon": site.daemon,
        "web": site.web,
        "nodes": site.nodes,
        "host": site.host,
    }
    settings = looked("settings", site.settings)
    if settings.findings or settings.skipped:
        # All but the node's GPUs is compared with slicewise.toml.
        others = [looked(name, looks[name]) for name in ("nodes",) if name in sections]
        return (settings, *others)
    return tuple(looked(name, looks[name]) for name in SECTIONS if name in sections)


async def _of_slurmdbd(
    slurm: Slurm,
) -> tuple[Collection[str], Mapping[str, Mapping[str, str]], Mapping[str, str]]:
    """Return QOS of other clusters, bounds of QOS, and who may change them."""
    return await together(slurm.qos_elsewhere(), qos_bounds(), admins())


def _found(name: str, findings: Iterable[Finding]) -> SectionReport:
    return SectionReport(name, tuple(findings))


class _Site:
    """The site as this host sees it; each part is read once, when a section first needs it."""

    def __init__(self, node: str | None, host_root: Path) -> None:
        self._node, self._host_root = node, host_root

    @cached_property
    def _settings(self) -> Settings:
        return load_settings()

    @cached_property
    def _has_settings(self) -> bool:
        return settings_file().exists() and not self._is_example

    @cached_property
    def _is_example(self) -> bool:
        """Whether slicewise.toml is as the packages brought it: that of no site."""
        try:
            return settings_file().read_bytes() == _EXAMPLE.read_bytes()
        except OSError:
            return False

    @cached_property
    def _wanted(self) -> Wanted:
        settings, daemon = self._settings, self._settings.daemon
        return Wanted(
            cluster=settings.cluster.name,
            partitions=settings.cluster.partitions,
            mode=daemon.mode,
            slurm_user=daemon.slurm_user,
            costs=settings.costs,
            billing=settings.billing,
            priority_max=settings.priority.max,
            munge_socket=str(daemon.munge_socket or ""),
            asks_by_munge=bool(daemon.listen or daemon.connect) and not daemon.certificate,
            servers=settings.gateway.servers,
            grace_s=settings.lending.grace_s,
            term_s=settings.lending.term_s,
        )

    @cached_property
    def _slurm(self) -> SlurmFacts | SlicewiseError:
        try:
            settings = self._settings if self._has_settings else None
            return asyncio.run(slurm_facts(open_slurm(settings)))
        except SlicewiseError as error:
            return error

    @cached_property
    def _status(self) -> StatusAnswer | SlicewiseError:
        try:
            return DaemonClient(self._settings.daemon).call(StatusRequest())
        except SlicewiseError as error:
            return error

    @cached_property
    def _database(self) -> LedgerFacts | SlicewiseError:
        # Imported here: SQLAlchemy takes longer to import than everything else.
        from slicewise.slurm_plugin.ledger.server_facts import ledger_facts  # noqa: PLC0415

        try:
            return ledger_facts(database_url(self._settings.database))
        except SlicewiseError as error:
            return error

    @cached_property
    def _is_controller(self) -> bool:
        """Whether slurmctld, and so the daemon, belongs on this host."""
        if self._settings.daemon.run_dir.exists():
            return True
        config = {} if isinstance(self._slurm, SlicewiseError) else self._slurm.config
        hosts = [text for key, text in config.items() if key.startswith("SlurmctldHost")]
        return any(is_here(text.rpartition("(")[2].removesuffix(")")) for text in hosts)

    def settings(self) -> SectionReport:
        """Look whether slicewise.toml can be read; a GPU node may have none."""
        is_node = self._node is not None or _has_gpus(self._nodes_seen(), node_name())
        if not self._has_settings and is_node:
            which = "an example as yet" if self._is_example else "not here"
            return SectionReport(
                "settings", skipped=f"{settings_file()} is {which}: only this node's GPUs"
            )
        if self._is_example:
            raise InvalidInputError(
                Code.SETTINGS,
                f"{settings_file()} is the example that came with the package.",
                "Put this site's there: slicewise setup proposes it.",
            )
        load_settings()
        return SectionReport("settings")

    def _nodes_seen(self) -> tuple[NodeView, ...]:
        return () if isinstance(self._slurm, SlicewiseError) else self._slurm.nodes

    def slurm(self) -> SectionReport:
        """Look at slurm.conf."""
        wanted = self._wanted
        if isinstance(self._slurm, SlicewiseError):
            raise self._slurm
        return _found("slurm", conf_checks(self._slurm, wanted))

    def partitions(self) -> SectionReport:
        """Look at the managed partitions."""
        wanted, seen = self._wanted, self._slurm
        if isinstance(seen, SlicewiseError):
            return SectionReport("partitions", skipped=_NO_SLURM)
        return _found("partitions", (*partition_checks(seen, wanted), *self._closed(seen)))

    def _closed(self, seen: SlurmFacts) -> tuple[Finding, ...]:
        """Return which partitions bar a tenant's QOS.

        slurmdbd, which a node may be unable to reach, is asked only where a partition restricts
        QOS.
        """
        managed = self._wanted.partitions
        views = [view for view in seen.partitions if view.name in managed]
        if all(view.allow_qos is None and not view.deny_qos for view in views):
            return ()
        try:
            rows = asyncio.run(open_slurm(self._settings).associations())
        except SlicewiseError as error:
            return (failure(error),)
        ours = {qos for row in rows for qos in row.qos if is_ours(qos)}
        closed = closed_to_qos(views, managed, ours)
        return tuple(by_mode(found, self._wanted.mode) for found in closed)

    def limits(self) -> SectionReport:
        """Look at QOS and limits beside the ledger."""
        wanted, settings = self._wanted, self._settings
        if not self._is_controller:
            return SectionReport("limits", skipped=_ELSEWHERE)
        if isinstance(self._slurm, SlicewiseError):
            return SectionReport("limits", skipped=_NO_SLURM)
        if any(finding.code == Code.CLUSTER_NAME for finding in self.slurm().findings):
            return SectionReport("limits", skipped="Slurm is another cluster's, as slurm says")
        if isinstance(self._database, SlicewiseError):
            return SectionReport("limits", skipped="the ledger can't be read")
        with opened_ledger(settings) as ledger:
            seen = asyncio.run(look(open_slurm(settings), ledger, settings))
        elsewhere, bounds, levels = asyncio.run(_of_slurmdbd(open_slurm(settings)))
        termed = {key.name for key in seen.wanted.settings if key.field == EXEMPT}
        daemon = settings.daemon
        said = {
            (finding.code, finding.what)
            for report in (self.slurm(), self.partitions())
            for finding in report.findings
        }
        policy = seen.ledger_view.policy
        return _found(
            "limits",
            (
                *(
                    by_mode(finding, wanted.mode)
                    for finding in seen.findings
                    if (finding.code, finding.what) not in said
                ),
                *drift_checks(
                    len(seen.differences), [*map(out_of_band_text, seen.out_of_band)], wanted.mode
                ),
                *group_checks(policy),
                *capacity_checks(
                    policy,
                    seen.inputs.slurm_view.nodes,
                    seen.inputs.rules.partitions,
                    seen.inputs.capacity_millislices,
                ),
                *type_checks(policy, seen.inputs.slurm_view.nodes, seen.inputs.rules.partitions),
                *cluster_checks(policy, elsewhere),
                *minutes_checks(seen.associations, policy),
                *bound_checks(bounds),
                *exempt_checks(seen.found.qos, policy, termed, wanted.grace_s),
                *admin_checks(
                    levels,
                    seen.associations,
                    policy,
                    (daemon.slurm_user, daemon.launcher_user),
                ),
            ),
        )

    def script(self) -> SectionReport:
        """Look at job_submit.lua."""
        if not self._is_controller:
            return SectionReport("script", skipped=_ELSEWHERE)
        return _found("script", script_checks(self._script_facts(), self._wanted.mode))

    def _script_facts(self) -> ScriptFacts:
        settings, script = self._settings, site_script(self._settings)
        text = script.read_text(encoding="utf-8", errors="replace") if script.exists() else None
        module = named_module(text or "")
        known = None if isinstance(self._status, SlicewiseError) else self._status
        return ScriptFacts(
            script=str(script),
            text=text,
            problem=problem(settings) if text is not None else "",
            has_old_lines=has_old_lines(settings),
            is_off=off_file().exists(),
            on_disk=version_of(MODULE.read_text(encoding="utf-8")),
            module=module,
            is_module_there=Path(module).exists() if module else True,
            loaded=known.module if known else "",
            loaded_mode=known.module_mode if known else "",
            unadmitted=known.unadmitted if known else 0,
        )

    def ledger(self) -> SectionReport:
        """Look at the ledger's database, and at what there would be without it."""
        settings = self._settings
        if not self._is_controller:
            return SectionReport("ledger", skipped=_ELSEWHERE)
        dump = settings_file().parent / _DUMP
        way_back = WayBackFacts(str(dump), dump.exists(), settings.cluster.name)
        database = self._database
        if isinstance(database, SlicewiseError):
            found: tuple[Finding, ...] = (failure(database),)
        else:
            found = ledger_checks(self._rights_known(database))
        return _found("ledger", (*found, *way_back_checks(way_back, self._wanted.mode)))

    @staticmethod
    def _rights_known(database: LedgerFacts) -> LedgerFacts:
        """Return the facts; without rights where the URL is an operator's, not the daemon's."""
        if os.environ.get(DATABASE_VARIABLE):
            return replace(database, lacks=(), is_owner=False)
        return database

    def daemon(self) -> SectionReport:
        """Look at the daemon."""
        settings = self._settings
        if not (self._is_controller or settings.daemon.connect):
            return SectionReport("daemon", skipped=_ELSEWHERE)
        known = self._status
        if isinstance(known, SlicewiseError):
            raise known
        facts = DaemonFacts(
            version=known.version,
            own_version=version("slicewise"),
            mode=known.mode,
            leads=known.is_leader,
            complete=known.complete,
            looked_s=wall_s() - known.observed_s,
            lost_socket=self._lost_socket() if known.is_leader else "",
        )
        mode = settings.daemon.mode if self._is_controller else known.mode
        found = tuple(daemon_checks(facts, mode, is_pair=settings.daemon.pair))
        with suppress(SlicewiseError):  # What keeps it from the ledger is said there.
            keys = DaemonClient(settings.daemon).call(KeyListRequest()).keys
            found += tuple(key_checks(keys, wall_s()))
        return _found("daemon", found)

    def _lost_socket(self) -> str:
        """Return the path of the daemon's admission socket if it is gone, and belongs here."""
        daemon = self._settings.daemon
        is_here = not daemon.connect or daemon.user_socket.exists()
        try:
            is_lost = is_here and self._is_controller and not daemon.admission_socket.exists()
        except PermissionError:
            return ""
        return str(daemon.admission_socket) if is_lost else ""

    def web(self) -> SectionReport:
        """Look at the page in the browser."""
        own = self._settings.web
        if not own.listen:
            return SectionReport("web", skipped="[web] listen is not set: there is no page")
        if not self._is_controller:
            return SectionReport("web", skipped="the page is on another host")
        # Imported here: aiohttp takes longer to import than everything else.
        from slicewise.slurm_plugin.api.http_server import SERVER  # noqa: PLC0415

        facts = page_facts(own, self._settings.gateway.url, SERVER)
        return _found("web", (*_short_secrets(own), *web_checks(facts)))

    def nodes(self) -> SectionReport:
        """Look at this host's GPUs, if it is a GPU node."""
        name = self._node or node_name()
        nodes = self._nodes_seen()
        if self._node is None and not _has_gpus(nodes, name):
            return SectionReport("nodes", skipped="no GPU node: run slicewise doctor on each")
        settings = self._settings if self._has_settings else None
        failed = (failure(self._slurm),) if isinstance(self._slurm, SlicewiseError) else ()
        engines = settings.engines if settings else {}
        default = EngineSettings()
        programs = missing_programs(engine.python for engine in (default, *engines.values()))
        is_needed = engines.get("triton", default).private_shm is not False
        bars = namespace_bars() if is_needed else {}
        try:
            found = node_findings(name, self._host_root, settings, nodes if not failed else None)
        except SlicewiseError as error:  # Without a driver the rest is looked at all the same.
            found = (failure(error),)
        config = {} if isinstance(self._slurm, SlicewiseError) else self._slurm.config
        devices = device_needs(config, name, self._host_root)
        needs = (*engine_needs(engines), *slurmds_needs(config), *devices)
        by_munge = ["munge.service"] if _is_by_munge(config) else []
        units = unit_checks(disabled_units(["slurmd.service", *by_munge]))
        full = (*space_checks(node_spaces(config, name)), *unmet(needs), *units)
        programs_found = node_programs_checks(programs, bars)
        cache = settings.launcher.node_cache if settings else None
        here = next((node for node in nodes if node.name == name), None)
        kept = node_cache_checks(node_cache_facts(cache), here) if cache else ()
        return _found("nodes", (*failed, *found, *programs_found, *kept, *full))

    def host(self) -> SectionReport:
        """Look at this host, and at the clocks of the servers that it asks."""
        settings, seen, database = self._settings, self._slurm, self._database_if_here()
        config = {} if isinstance(seen, SlicewiseError) else seen.config
        ports = frozenset() if isinstance(seen, SlicewiseError) else reserved_ports(seen)
        facts = host_facts(
            settings,
            MODULE,
            config,
            is_controller=self._is_controller,
            needs_munge=self._wanted.asks_by_munge or _is_by_munge(config),
        )
        clocks = {
            "slurmctld": None if isinstance(seen, SlicewiseError) else seen.clock_ahead_s,
            "PostgreSQL": database.clock_ahead_s if database else None,
        }
        ends = certificate_checks(facts.certificates, wall_s())
        return _found("host", (*host_checks(facts, ports), *ends, *clock_checks(clocks)))

    def _database_if_here(self) -> LedgerFacts | None:
        if not self._is_controller or isinstance(self._database, SlicewiseError):
            return None
        return self._database


def _short_secrets(web: WebSettings) -> Iterator[Finding]:
    """Say which secrets are not there, or too short for the page's server to start."""
    for path, name in (
        (web.proxy_secret_file, "web.proxy_secret_file"),
        (web.oidc.client_secret_file, "web.oidc.client_secret_file"),
    ):
        try:
            if path is not None:
                secret_in(path, name)
        except SlicewiseError as raised:
            yield failure(raised)


def _is_by_munge(config: Mapping[str, str]) -> bool:
    return config.get("AuthType") == "auth/munge"


def _has_gpus(nodes: Iterable[NodeView], name: str) -> bool:
    return any(node.name == name and (node.gpus or node.untyped_gpus) for node in nodes)
