"""Checks whether slurmctld runs slicewise.lua, and which."""

import re
from collections.abc import Callable, Iterator

from slicewise.cluster.language.codes import Code
from slicewise.cluster.language.findings import Finding, Mend, Place, error, hint, warning
from slicewise.slurm_plugin.rules.site.facts import ScriptFacts

_INSTALL = Mend(Place.SCRIPT, "slicewise admission install --write-proposal")
_PYTHON = re.compile(r"/python\d+\.\d+/")


def script_checks(facts: ScriptFacts, mode: str) -> tuple[Finding, ...]:
    """Return why slurmctld does not run the slicewise.lua of this version, in the right mode.

    ``mode`` is the daemon's, by the settings.
    """
    # Before mode enforce services need no script.
    lacks = error if mode == "enforce" else hint
    if facts.text is None:
        return (_absent(facts.script, lacks),)
    return (
        *_lines(facts, lacks),
        *_module(facts),
        *_lua(facts),
        *_switched_off(facts),
        *_loaded(facts, mode),
        *_passed(facts, mode),
    )


def _absent(script: str, lacks: Callable[..., Finding]) -> Finding:
    return lacks(
        Code.SCRIPT_INSTALL,
        f"{script} does not exist",
        "no job is asked about; slurmctld with JobSubmitPlugins=lua does not start without it",
        Mend(Place.SCRIPT, "slicewise admission install"),
    )


def _lines(facts: ScriptFacts, lacks: Callable[..., Finding]) -> Iterator[Finding]:
    if "slicewise.lua" not in (facts.text or ""):
        yield lacks(
            Code.SCRIPT_INSTALL,
            f"{facts.script} has no lines of Slicewise",
            "no job is asked about",
            _INSTALL,
            Mend(Place.SCRIPT, f"mv {facts.script}.slicewise-proposed {facts.script}"),
        )
    elif facts.has_old_lines:
        yield warning(
            Code.SCRIPT_OLD,
            f"The lines in {facts.script} are not those that would be proposed now",
            "nodes, partitions, settings or Slicewise have changed",
            _INSTALL,
            Mend(Place.SCRIPT, f"mv {facts.script}.slicewise-proposed {facts.script}"),
        )


def _module(facts: ScriptFacts) -> Iterator[Finding]:
    if not facts.module:
        return
    if not facts.is_module_there:
        yield error(
            Code.SCRIPT_INSTALL,
            f"{facts.script} loads {facts.module}, which is not there",
            "slurmctld admits nothing",
            _INSTALL,
            Mend(Place.SCRIPT, f"mv {facts.script}.slicewise-proposed {facts.script}"),
        )
    elif version := _PYTHON.search(facts.module):
        yield hint(
            Code.SCRIPT_PATH,
            f"{facts.script} loads {facts.module}, below {version[0].strip('/')}",
            "a new Python on this host moves that file, which switches admission off",
            advice="After such a change run slicewise admission install, and this again.",
        )


def _lua(facts: ScriptFacts) -> Iterator[Finding]:
    if facts.problem:
        yield error(
            Code.ADMISSION_LUA,
            "slurmctld's Lua refuses slicewise.lua or the script that loads it:"
            f" {facts.problem.removesuffix('.')}",
            "slurmctld goes on with what it read before, if anything, and does not start again",
            Mend(Place.SCRIPT, "slicewise admission install"),
            Mend(Place.SCRIPT, f"touch {facts.script}"),
            advice="Install, for that Lua, or correct what the message names.",
        )


def _switched_off(facts: ScriptFacts) -> Iterator[Finding]:
    if facts.is_off:
        yield warning(
            Code.SCRIPT_OFF,
            "The kill switch is set: slicewise.lua does nothing",
            "untyped GPUs start above all limits",
            Mend(Place.SCRIPT, "slicewise admission on"),
        )


def _loaded(facts: ScriptFacts, mode: str) -> Iterator[Finding]:
    if facts.loaded and facts.loaded != facts.on_disk:
        yield warning(
            Code.RESTART,
            f"slurmctld runs slicewise.lua {facts.loaded}, on disk is {facts.on_disk}",
            "it reads a script again only if that is newer than before: one put back with an old"
            " time is not read",
            Mend(Place.SCRIPT, f"touch {facts.script}"),
        )
    if facts.loaded and facts.loaded_mode != mode:
        yield warning(
            Code.SCRIPT_MODE,
            f"slicewise.lua is in mode {facts.loaded_mode}, [daemon] mode is {mode}",
            "what then holds is in docs/explanation/daemon.md, Modes",
            Mend(Place.SCRIPT, f'mode = "{mode}"'),
            advice="In the protected lines of job_submit.lua, once the daemon runs in that mode.",
        )


def _passed(facts: ScriptFacts, mode: str) -> Iterator[Finding]:
    if facts.unadmitted and mode == "enforce":
        yield warning(
            Code.SCRIPT_PASSED,
            f"{facts.unadmitted} jobs got GPUs, or wait for them, without slicewise.lua",
            "slurmctld did not run it, or it was off or not in mode enforce",
            advice="slurmctld's log says why (slicewise, lua).",
        )
