"""``slicewise setup``: asks what a site is like, and writes proposals; it changes nothing."""

import asyncio
import secrets
from collections.abc import Mapping, Sequence
from collections.abc import Set as AbstractSet
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Annotated, cast

import typer
from pydantic import ValidationError

from slicewise.cluster.language.billing import BillingUnit
from slicewise.cluster.language.codes import Code
from slicewise.cluster.language.errors import InvalidInputError, SlicewiseError
from slicewise.cluster.language.findings import Place
from slicewise.cluster.language.toml_text import read_toml
from slicewise.cluster.runtime.console import console
from slicewise.cluster.runtime.questions import is_at_a_terminal
from slicewise.cluster.settings.file import Settings
from slicewise.cluster.settings.read import settings_file
from slicewise.cluster.slurm.open import open_slurm
from slicewise.slurm_plugin.cli.commands.admission import proposed_script
from slicewise.slurm_plugin.cli.commands.this_host import (
    signing_key,
    token_facts,
    usual_signing_key,
)
from slicewise.slurm_plugin.cli.common.slurm_facts import slurm_facts
from slicewise.slurm_plugin.rules.site import services_only as services_only_files
from slicewise.slurm_plugin.rules.site.answers import Answers, guessed, unknown_types
from slicewise.slurm_plugin.rules.site.conf_checks import conf_checks, fitting_priority_max
from slicewise.slurm_plugin.rules.site.facts import SlurmFacts, Wanted
from slicewise.slurm_plugin.rules.site.gpu_types import UnknownTypes
from slicewise.slurm_plugin.rules.site.partition_checks import (
    counts_use,
    partition_checks,
    slice_billing,
)
from slicewise.slurm_plugin.rules.site.proposed_files import (
    GUIDE,
    SlurmsOwn,
    allocations_text,
    answers_text,
    conf_text,
    daemon_text,
    environment_text,
    gateway_text,
    gres_text,
    left_out_text,
    settings_text,
    steps_text,
)
from slicewise.slurm_plugin.rules.site.token_checks import token_checks
from slicewise.slurm_plugin.rules.slurm_config.allocations import allocations, fitting_unit

_SECRET = "database-url"  # noqa: S105 -- a file's name
_LAUNCHERS = "launcher-database-url"
_SECRETS = frozenset({_SECRET, _LAUNCHERS, "database.sql"})
_OTHER_HOSTS = frozenset({"gateway", "login_hosts"})
_UNASKED = frozenset({*_OTHER_HOSTS, "parent_account", "model_repository", "database_url"})
"""Answers that services alone do not need: all runs on slurmctld's host."""
_LISTS = ("partitions", "login_hosts")
_WITH_PASSWORD = "database_url"  # noqa: S105 -- an answer's name


def setup_command(
    answers: Annotated[
        Path | None,
        typer.Option(help="TOML file with answers; what it leaves out is as Slurm has it."),
    ] = None,
    output: Annotated[
        Path, typer.Option(help="Directory for the proposals; it must not exist yet.")
    ] = Path("slicewise-setup"),
    services_only: Annotated[
        bool,
        typer.Option(
            "--services-only",
            help="Services alone, all on this host: with a script that makes the database, and no"
            " lines for quotas.",
        ),
    ] = False,
) -> None:
    """Ask what the site is like, and write proposals of all files, with the steps in order.

    Run it on slurmctld's host. It reads partitions, GPUs, hosts and settings from Slurm first, so
    that most answers need Enter only; with --answers it asks nothing. It writes into its own
    directory and changes nothing else: you compare and copy. STEPS.md there says in which order. It
    works without the daemon.

    With --services-only read services.sh, then run it: models are served, and nothing of Slurm's
    configuration, limits or other jobs is changed. Quotas come later, by setup without it.
    """
    with suppress(PermissionError):  # Writing says so, later.
        if output.exists():
            raise _not_written(f"{output}: it exists")
    facts = asyncio.run(slurm_facts(open_slurm(None)))
    known = {**guessed(facts.config, facts.partitions, facts.nodes), **_own_url()}
    unknown = unknown_types(facts.nodes)
    skips = _UNASKED if services_only else frozenset[str]()
    given = _given(known, _read(answers), unknown) if answers else _asked(known, unknown, skips)
    if services_only:
        given = _on_one_host(given)
    priced = {kind for kinds in given.gpus.values() for kind in kinds}
    unknown = tuple(group for group in unknown if not priced.issuperset(group.types))
    files = _files(given, facts, unknown, services_only=services_only)
    _write(output, files)
    for group in unknown:
        console().print(left_out_text(group), markup=False, style="yellow")
    if text := files.get("allocations.txt"):
        console().print(text, markup=False, highlight=False, soft_wrap=True)
    for name in files:
        console().print(f"{output / name}", markup=False, highlight=False, soft_wrap=True)
    console().print(f"Nothing else was changed. Go on with {output / 'STEPS.md'}", markup=False)


def _on_one_host(answers: Answers) -> Answers:
    """Return the answers with a database whose URL has a password; a refusal for more hosts."""
    if answers.is_spread:
        raise _refused(f"--services-only is for one host, so gateway is {answers.controller}")
    if not services_only_files.is_of(answers.database_url, answers.controller):
        raise _refused("--services-only is for one host, so database_url is of localhost")
    url = services_only_files.with_password(answers.database_url, secrets.token_hex(16))
    return answers.model_copy(update={_WITH_PASSWORD: url})


def _launchers_url(url: str) -> str:
    """Return that of this host, if it has one already."""
    with suppress(OSError, ValueError):
        if url_there := (settings_file().parent / _LAUNCHERS).read_text(encoding="utf-8").strip():
            return url_there
    return services_only_files.launcher_url(url, secrets.token_hex(16))


def _own_url() -> Mapping[str, object]:
    """The URL that this host has already, which a proposal of another would take the place of."""
    with suppress(OSError, ValueError):
        if url := _url_file().read_text(encoding="utf-8").strip():
            return {_WITH_PASSWORD: url}
    return {}


def _url_file() -> Path:
    return settings_file().parent / _SECRET


def _read(file: Path) -> Mapping[str, object]:
    try:
        return read_toml(file.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        why = error.strerror if isinstance(error, OSError) else str(error)
        raise _refused(f"{file}: {why}") from None


def _given(
    known: Mapping[str, object], said: Mapping[str, object], unknown: Sequence[UnknownTypes]
) -> Answers:
    if unknown and "gpus" not in {*known, *said}:
        asked = "; ".join(f"{', '.join(group.types)} ({group.why})" for group in unknown)
        raise _refused(f"gpus: name there the model of {asked}")
    return _answered(known, said)


def _answered(known: Mapping[str, object], said: Mapping[str, object]) -> Answers:
    try:
        return Answers.model_validate({**known, **said})
    except ValidationError as error:
        problems = (
            f"{'.'.join(map(str, problem['loc']))}: {problem['msg']}" for problem in error.errors()
        )
        raise _refused("; ".join(problems)) from None


def _refused(why: str) -> InvalidInputError:
    return InvalidInputError(
        Code.USAGE,
        f"The answers can't be taken: {why}.",
        f"Keys of the file: {', '.join(Answers.model_fields)}. Nothing was written.",
    )


def _asked(
    known: Mapping[str, object], unknown: Sequence[UnknownTypes], skips: AbstractSet[str]
) -> Answers:
    """Ask for each answer at the terminal but those to skip, with what is known as its default."""
    if not is_at_a_terminal():
        raise _refused("there is no terminal to ask at; give a file with --answers")
    if "gpus" not in known and not unknown:
        raise _refused("Slurm has no typed GPUs yet; give a file that has [gpus], with --answers")
    gpus = dict(cast("Mapping[str, tuple[str, ...]]", known.get("gpus", {})))
    given: dict[str, object] = {"gpus": gpus}
    models = ", ".join(gpus) or "none that can be told"
    console().print(
        "Enter takes what stands in brackets. Nothing is changed, and Ctrl-C writes nothing.\n"
        f"GPUs, by the names of their types in Slurm: {models}. Correct them in slicewise.toml.\n",
        markup=False,
        highlight=False,
    )
    for group in unknown:
        if not group.has_profiles:
            continue  # With a model they would be whole GPUs.
        names = ", ".join(group.types)
        question = f"GPU model of {names} ({group.why}; Enter leaves them out)"
        if model := typer.prompt(question, default="", show_default=False).strip():
            gpus[model] = (*gpus.get(model, ()), *group.types)
    for key, field in Answers.model_fields.items():
        if key == "gpus":
            continue
        if key in skips:
            given |= {key: known[key]} if key in known else {}
            continue
        default = known.get(key, field.get_default())
        shown = ",".join(default) if isinstance(default, tuple) else default
        missing = field.is_required() and key not in known
        is_secret = key == _WITH_PASSWORD and key in known
        question = _question(key, str(field.description))
        text = typer.prompt(
            f"{question} [that of {_url_file()}]" if is_secret else question,
            default=None if missing else str(shown),
            hide_input=key == _WITH_PASSWORD,
            show_default=bool(shown) and not is_secret,
        )
        given[key] = _listed(text) if key in _LISTS else text
    return _answered({}, given)


def _question(key: str, description: str) -> str:
    if key in _LISTS:
        return f"{description} (with commas between)"
    return f"{description} (not shown as you type)" if key == _WITH_PASSWORD else description


def _listed(text: str) -> tuple[str, ...]:
    return tuple(filter(None, (word.strip() for word in text.split(","))))


def _slurms_own(answers: Answers, config: Mapping[str, str]) -> SlurmsOwn:
    slurms = SlurmsOwn(config.get("SLURM_CONF", SlurmsOwn.slurm_conf))
    has_munge = config.get("AuthType", "auth/munge") == "auth/munge"
    if has_munge or not answers.is_spread:
        return slurms
    return replace(slurms, jwt_key=signing_key(config) or str(usual_signing_key(config)))


def _settings(answers: Answers, slurms: SlurmsOwn) -> Settings:
    """Return the proposed settings, checked as any slicewise.toml is."""
    try:
        return Settings.model_validate(read_toml(settings_text(answers, slurms)))
    except ValidationError as error:
        raise _refused("; ".join(str(problem["msg"]) for problem in error.errors())) from None
    except SlicewiseError as error:
        raise _refused(error.refusal.message.removesuffix(".")) from None


def _wanted(answers: Answers, settings: Settings) -> Wanted:
    return Wanted(
        cluster=answers.cluster,
        partitions=answers.partitions,
        mode="observe",
        slurm_user=answers.slurm_user,
        costs=settings.costs,
    )


def _files(
    answers: Answers,
    facts: SlurmFacts,
    unknown: Sequence[UnknownTypes],
    *,
    services_only: bool,
) -> Mapping[str, str]:
    if services_only:
        return _services_files(answers, facts, unknown)
    slurms = _slurms_own(answers, facts.config)
    settings = _settings(answers, slurms)
    wanted = replace(
        _wanted(answers, settings),
        billing=settings.billing,
        priority_max=settings.priority.max,
        asks_by_munge=answers.is_spread and not slurms.jwt_key,
    )
    own_limits = allocations(facts.billing_limits or ())
    billing = slice_billing(facts, wanted)
    if billing is not None and (own_limits or counts_use(facts, answers.partitions)):
        billing = replace(billing, due=fitting_unit(billing.now, wanted.costs.values()))
        slurms = replace(slurms, billing_per_slice=billing.due)
        wanted = replace(wanted, billing=BillingUnit(billing.due))
    # What is proposed is for the day on which quotas are enforced; only the gate comes later.
    of_conf = conf_checks(facts, replace(wanted, mode="enforce"))
    tokens = token_checks(token_facts(settings.daemon, facts.config))
    lacks = (*of_conf, *partition_checks(facts, wanted), *tokens)
    if any(lack.code == Code.CONF_WEIGHTS for lack in lacks):
        slurms = replace(slurms, priority_max=fitting_priority_max(facts))
    nodes = [node.name for node in facts.nodes if node.is_in(frozenset(answers.partitions))]
    texts = {
        "slicewise.toml": settings_text(answers, slurms, unknown),
        _SECRET: f"{answers.database_url}\n",
        "slurm.conf.lines": conf_text(lacks, Place.SLURM_CONF),
        "cgroup.conf.lines": conf_text(lacks, Place.CGROUP_CONF),
        "gres.conf.hint": gres_text(nodes),
        "job_submit.lua": proposed_script(settings),
        "environment": environment_text(slurms),
        "daemon.conf": daemon_text(answers),
        "gateway.sh": gateway_text(settings.gateway.bind),
        "answers.toml": answers_text(answers),
        "allocations.txt": allocations_text(own_limits, billing),
    }
    written = {name: text for name, text in texts.items() if text}
    return {**written, "STEPS.md": steps_text(answers, slurms, written)}


def _services_files(
    answers: Answers, facts: SlurmFacts, unknown: Sequence[UnknownTypes]
) -> Mapping[str, str]:
    slurms = _slurms_own(answers, facts.config)
    settings = _settings(answers, slurms)
    needs = services_only_files.needs(conf_checks(facts, _wanted(answers, settings)))
    needs += tuple(token_checks(token_facts(settings.daemon, facts.config)))
    lines = conf_text(needs, Place.SLURM_CONF)
    launchers_url = _launchers_url(answers.database_url)
    texts = {
        "slicewise.toml": settings_text(answers, slurms, unknown),
        _SECRET: f"{answers.database_url}\n",
        _LAUNCHERS: f"{launchers_url}\n",
        "database.sql": services_only_files.database_text(answers.database_url, launchers_url),
        "slurm.conf.lines": lines,
        "environment": environment_text(slurms),
        "daemon.conf": daemon_text(answers),
        "gateway.sh": gateway_text(settings.gateway.bind),
        "services.sh": services_only_files.services_text(answers, slurms),
        "STEPS.md": services_only_files.steps_text(answers, GUIDE, has_lines=bool(lines)),
    }
    return {name: text for name, text in texts.items() if text}


def _write(directory: Path, files: Mapping[str, str]) -> None:
    try:
        directory.mkdir(mode=0o755)
        for name, text in files.items():
            path = directory / name
            path.touch(mode=0o600 if name in _SECRETS else 0o644)
            path.write_text(text, encoding="utf-8")
    except OSError as error:
        raise _not_written(f"{error.filename}: {error.strerror}") from None


def _not_written(why: str) -> InvalidInputError:
    return InvalidInputError(
        Code.OUTPUT,
        f"{why}.",
        "Name a directory that does not exist yet, in one that you may write: --output",
    )
