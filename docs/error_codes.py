"""Writes the page of error codes, whose table is ``slicewise.cluster.language.codes``."""

from collections.abc import Iterator, Mapping

from slicewise.cluster.language.codes import Area, Code

_HEAD = """\
# Error codes

What each code of Slicewise means, and what to do about it. Each refusal, failure and finding has
a code, and those that are mended in the same way have the same. Codes are stable: match on them
in scripts, not on the words beside them, which name the key, the number or the file in question.

| where | how it looks |
| --- | --- |
| `sbatch`, `srun`, `salloc` | message, hint and code, a line each, before Slurm's own line |
| `slicewise` commands | the same on stderr, with `--json` as one line of JSON; the [exit \
code](exit-codes.md) follows from the code |
| `slicewise sandbox`, the demo | one line on stderr, the code at its end in brackets; exit \
code as above, of the demo 1 |
| the gateway | JSON body `{"error": "CODE: text"}` with a status; to gRPC clients a status \
with that text |
| the daemon's sockets | JSON with `code`, `message` and, if there is one, `hint`; by HTTP with\
 a [status](wire-api.md) |
| the logs of daemon and launcher | `error=` or `why=`, the code at the end in brackets; \
`code=` at `submit_refuse` |

What a command line can't be read for has exit code 2, and a code (SW-USAGE) with `--json` only.
Codes that begin with SW-QUOTA-, said to sbatch, end with Slurm's "Job violates accounting/QOS
policy", all others with "Access/permission denied".

## Which code a submission gets

The first rule that applies decides
([admission/rules.py](../../slurm_plugin/rules/admission/rules.py)):

1. no managed partition is asked for: the job passes; a service gets SW-SERVICE
2. SW-DIRECTIVE, SW-SERVICE: the `#SLICEWISE` lines
3. no GPUs and no whole nodes are asked for: the job passes
4. SW-SERVICE: another tenant than the account
5. SW-TENANT-UNKNOWN: the account is not the user's; SW-QUOTA-NONE: it has no quota
6. SW-CLASS-FORBIDDEN
7. SW-GRES, SW-NEED-TOO-LARGE, SW-PROFILE-UNKNOWN: the GPUs asked for; of a service then
   SW-SERVICE
8. SW-QOS: another tenant's; SW-QUOTA-BORROW: the tenant's borrowed QOS, and the tenant may
   borrow nothing; SW-QUOTA-EXCEEDED: one task costs more than the tenant could ever hold
9. SW-QUOTA-EXCEEDED: more instances of a type than the tenant may have; SW-BUDGET-EXCEEDED
10. of a service: SW-SERVICE-EXISTS, SW-SERVICE-ENDING, SW-SERVICE-PLACES, then SW-SERVICE for
    its array

Without an answer of the daemon a service gets SW-DAEMON-DOWN; other jobs go on or are held, and
are [decided later](../explanation/daemon.md#without-an-answer). All this is in mode enforce;
with advise the texts are shown and the job goes on, with observe they are logged only
([modes](../explanation/daemon.md#modes)).

`slicewise service apply` looks at the file first (SW-SERVICE), then at the model
(SW-SERVICE-MODEL) and the directory (SW-OUTPUT). Then it asks the daemon what the
answer would be, and submits.
"""
_ABOUT: Mapping[Area, str] = {
    Area.LEDGER: "Most of these commands need the ledger's database and are the operator's.",
    Area.SERVERS: """\
The daemon waits for Slurm and PostgreSQL at its start, whether they are down or refuse
(`start_ledger_waits`, `start_slurm_waits` and the code in its log). For limits that Slurm does
not take it does not wait (`start_limits_failed`). Any other code at its start ends it with that
code's exit code. Later it logs codes and goes on, with `sync_failed`, `bookkeeping_failed` or
`guard_failed` before them.""",
    Area.CLIENTS: "The status stands first. A 5xx without a code comes from the engine.",
    Area.SITE: """\
`slicewise doctor` shows these with what is wrong there; `--fix` prints the lines and commands
that mend them ([how](../how-to/runbooks.md#the-doctor)). `compile` and the daemon's log
(`limits_odd`) say those of slurm.conf, partitions and limits, too. What can't be read stands
there with its own code from the tables above. `slicewise overview` and `slicewise top` list
what needs attention now, with the command that mends it: SW-NODE-DOWN, SW-WAITING,
SW-BUDGET-LOW, SW-DAEMON-BLIND, SW-LAUNCHER-DOWN, SW-QUOTA-CAPACITY, SW-SCRIPT-PASSED,
SW-SERVICE-FAILING and SW-UNINSTALLED; what is about the site and its nodes only operators are
told. `doctor` and `overview` end with 1 after an error, with 9 after warnings only.""",
}
"""What to say before the table of an area."""


def page() -> Iterator[str]:
    """The lines of the page."""
    yield _HEAD
    for area in Area:
        yield from (f"## {area}", "")
        if area in _ABOUT:
            yield from (_ABOUT[area], "")
        yield from ("| code | exit | what happened | what to do |", "| --- | --- | --- | --- |")
        for code in Code:
            if code.area is area:
                yield f"| {code} | {_exit(code)} | {code.happened} | {code.remedy} |"
        yield ""


def _exit(code: Code) -> str:
    """The exit code of a command that it ends; clients of the gateway run none."""
    return "–" if code.area is Area.CLIENTS else f"{code.exit_code:d}"
