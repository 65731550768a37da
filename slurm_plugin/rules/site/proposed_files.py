"""Writes the proposed files of a site as text, and the steps in their order."""

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from pathlib import PurePath

from slicewise.cluster.language.findings import Finding, Place, Severity
from slicewise.cluster.language.slurm.billing_limits import BillingLimit
from slicewise.slurm_plugin.rules.site.answers import Answers
from slicewise.slurm_plugin.rules.site.gpu_types import UnknownTypes, fitting_boards, is_profile
from slicewise.slurm_plugin.rules.slurm_config.allocations import (
    SliceBilling,
    amount_text,
    owner_of,
    raised,
    unit_line,
    worth_text,
)

_PORT = 6830
_USUAL_SLURM_CONF = "/etc/slurm/slurm.conf"
GUIDE = "/usr/share/doc/slicewise/how-to/install.md"
"""Where the packages put the guide."""


@dataclass(frozen=True)
class SlurmsOwn:
    """What Slurm says of itself, and no question asks.

    Attributes:
        slurm_conf: path of slurm.conf.
        jwt_key: the key of its tokens, where other hosts must ask by https since Slurm has no
            munge; "" where they ask by munge.
        priority_max: the highest site_factor that its own priorities want; None where 10,000 does.
        billing_per_slice: with which limits on billing and past use are worth what they are; None
            where nothing goes by billing.
    """

    slurm_conf: str = _USUAL_SLURM_CONF
    jwt_key: str = ""
    priority_max: int | None = None
    billing_per_slice: Fraction | None = None

    @property
    def is_elsewhere(self) -> bool:
        """Whether Slurm's commands find slurm.conf by $SLURM_CONF only."""
        return self.slurm_conf != _USUAL_SLURM_CONF


def settings_text(answers: Answers, slurms: SlurmsOwn, unknown: Iterable[UnknownTypes] = ()) -> str:
    """Return a slicewise.toml, in mode observe; ``unknown`` types have no model in it."""
    lines = [
        "# Proposed by slicewise setup; /usr/share/slicewise/slicewise.toml explains every key.",
        "[cluster]",
        f"name = {_toml(answers.cluster)}",
        f"partitions = {_toml(answers.partitions)}",
    ]
    if slurms.billing_per_slice is not None:
        lines.append(
            f"{unit_line(slurms.billing_per_slice)}    # as now, for limits and fair share"
        )
    for model, kinds in answers.gpus.items():
        cut = [gres_type for gres_type in kinds if is_profile(model, gres_type)]
        whole = [gres_type for gres_type in kinds if gres_type not in cut]
        lines += ["", *_guess(model, cut), f"[gpus.{_toml(model)}]", 'weight = "1"']
        lines += [f"types = {_toml(cut)}"] if cut else []
        lines += [f"whole = {_toml(whole)}"] if whole else []
    lines += [line for kind_left in unknown for line in ("", f"# {left_out_text(kind_left)}")]
    lines += ["", "[daemon]", 'mode = "observe"', f"slurm_user = {_toml(answers.slurm_user)}"]
    if answers.is_spread:
        address = _toml(f"{answers.controller}:{_PORT}")
        lines += [f"listen = {address}", f"connect = {address}"]
    if slurms.jwt_key:
        lines += [
            "# Slurm has no munge; docs/how-to/without-munge.md says how to make the certificate.",
            'certificate = "/etc/slicewise/daemon.pem"',
            'certificate_authority = "/etc/slicewise/daemon.crt"',
            f"slurm_jwt_key = {_toml(slurms.jwt_key)}",
        ]
    lines += [
        *("", "[database]", 'url_file = "/etc/slicewise/database-url"'),
        *("", "[gateway]", f"url = {_toml(f'http://{answers.gateway}:8080')}"),
        'bind = "0.0.0.0:8080"',
        *("", "[launcher]", 'url_file = "/etc/slicewise/launcher-database-url"'),
    ]
    if slurms.priority_max is not None:
        lines += ["", "[priority]", f"max = {slurms.priority_max}    # beside Slurm's own factors"]
    if slurms.is_elsewhere:
        lines += ["", "[repartition]", f"slurm_conf = {_toml(slurms.slurm_conf)}"]
    return "\n".join((*lines, ""))


def left_out_text(types: UnknownTypes) -> str:
    """Say which types have no price yet, and why."""
    names = ", ".join(types.types)
    return f"Left out, and without a price until [gpus] names its model: {names} ({types.why})."


def _guess(model: str, cut: Iterable[str]) -> list[str]:
    """Return a comment that names the other models whose profiles have the same names."""
    others = [
        fitting_board.model for fitting_board in fitting_boards(cut) if fitting_board.model != model
    ]
    return [f"# The types fit these models, too: {', '.join(others)}."] if others else []


def answers_text(answers: Answers) -> str:
    """Return the answers as TOML, without the database's URL, which may hold a password."""
    given = answers.model_dump(mode="json", exclude={"database_url", "gpus"})
    lines = [f"{key} = {_toml(value)}" for key, value in given.items()]
    gpus = [f"{_toml(model)} = {_toml(kinds)}" for model, kinds in answers.gpus.items()]
    return "\n".join((*lines, "", "[gpus]", *gpus, ""))


def _toml(value: object) -> str:
    """Write text, or a list of texts, as TOML does: JSON's strings are strings of TOML."""
    return json.dumps(value, ensure_ascii=False)


def conf_text(findings: Iterable[Finding], place: Place) -> str:
    """Return the lines that one of Slurm's files lacks, each below why; "" if it lacks none.

    What is the site's choice is a comment.
    """
    lines: dict[str, None] = {}
    for finding in findings:
        own = [_written(mend.line, finding) for mend in finding.mends if mend.place is place]
        if own and not all(line in lines for line in own):
            comment = f"# {finding.what}: {finding.why}." if finding.why else f"# {finding.what}."
            lines |= dict.fromkeys((f"{comment} {finding.advice}".rstrip(), *own))
    return "\n".join((*lines, "")) if lines else ""


def _written(line: str, finding: Finding) -> str:
    is_choice = finding.severity is Severity.HINT and not line.startswith("#")
    return f"# if you choose so: {line}" if is_choice else line


_ALLOCATIONS = """\
# What limits on billing are worth before and after TRESBillingWeights of slurm.conf.lines
#
# Now a slice bills {now} on average where all managed nodes are in use, then {due}
# (billing_per_slice of slicewise.toml). A GPU has 7 slices. What was used before counts in the old
# unit until it has decayed (PriorityDecayHalfLife), for limits and for fair share.
"""


def allocations_text(limits: Sequence[BillingLimit], billing: SliceBilling | None) -> str:
    """Return what is left of the site's limits on billing, now and then; "" without limits."""
    if billing is None or not limits:
        return ""
    lines = []
    for limit in limits:
        lines.append(
            f"{owner_of(limit)}: {limit.name}=billing={limit.limit}, {worth_text(limit, billing)}"
        )
        if not billing.stays:
            lines += [f"    to keep it, with the new weights: {x}" for x in raised(limit, billing)]
    head = _ALLOCATIONS.format(now=amount_text(billing.now), due=amount_text(billing.due))
    return "\n".join((head, *lines, ""))


def daemon_text(answers: Answers) -> str:
    """Return a drop-in of the daemon's unit; "" where the unit is right as it is."""
    if answers.slurm_user == "slurm":
        return ""
    return f"[Service]\nUser={answers.slurm_user}\nGroup={answers.slurm_user}\n"


def environment_text(slurms: SlurmsOwn) -> str:
    """Return what systemd tells the units; "" where they need nothing."""
    return f"SLURM_CONF={slurms.slurm_conf}\n" if slurms.is_elsewhere else ""


def gateway_text(bind: str) -> str:
    """Return the commands that prepare the gateway's host; ``bind`` is gateway.bind.

    HAProxy's drop-in has systemd open the port of haproxy-slicewise.socket.
    """
    return f"""\
#!/bin/sh
# On the gateway's host, as root; read it first. Nothing of it was run.
set -eu
from=/usr/share/slicewise
install -d -m 711 -o slicewise -g slicewise /etc/haproxy/slicewise
install -D -m 644 $from/haproxy-slicewise.conf /etc/systemd/system/haproxy.service.d/slicewise.conf
install -D -m 644 $from/haproxy-openssl.cnf /etc/haproxy/slicewise-openssl.cnf
units=/etc/systemd/system
if ! systemctl cat haproxy-slicewise.socket > /dev/null 2>&1; then
    install -m 644 $from/haproxy-slicewise.socket $units/
fi
install -d -m 755 $units/haproxy-slicewise.socket.d
cat > $units/haproxy-slicewise.socket.d/bind.conf << END
[Socket]
ListenStream=
ListenStream={bind}
END
slicewise gateway render --check --user haproxy --group haproxy --socket-user slicewise
systemctl daemon-reload
systemctl stop haproxy
systemctl enable haproxy-slicewise.socket
systemctl restart haproxy-slicewise.socket
systemctl start haproxy
systemctl enable --now slicewise-launcher
"""


def gres_text(nodes: Iterable[str]) -> str:
    """Return how to get the lines of gres.conf, which only a node's own driver knows."""
    commands = (
        f"ssh {node} slicewise node gres --node {node}    # gres.conf and slurm.conf of {node}"
        for node in nodes
    )
    steps = (
        "# Compare with the lines that you have. Each node wants the package slicewise for that,",
        "# and slicewise.toml. Pads, such as pad9, are only for GPUs that are repartitioned.",
    )
    return "\n".join((*steps, *commands, ""))


_STEPS = """\
# Steps

Nothing was changed. In this order; sections are those of
{guide}:

1. Read `slicewise.toml`, and put it into /etc/slicewise on {hosts} (0644).
2. On {controller}: `install -m 640 -g {slurm_user} database-url /etc/slicewise/`, then
   `slicewise ledger db upgrade`. The database and its role: section 2.
3. On {controller}: `mv job_submit.lua {script}`.
   Your own is in it, if you have one, before Slicewise's lines. Before step 4: with
   JobSubmitPlugins=lua slurmctld does not start without it. What it needs there: section 5.
4. {conf}{allocations}
   Leave `QOS=slicewise_gate` out until mode enforce: slurmctld exits if that QOS does not exist.
5. `gres.conf.hint` says how to compare the lines of the GPU nodes.
6. On {controller}: {drop_in}`systemctl enable --now slicewise-daemon`. It only observes.
7. Give the launcher its database (section 6); on {gateway} read and run `gateway.sh`.
   Copy /etc/slicewise/gateway.crt to all hosts of step 1.
8. `slicewise tenant import --dry-run` shows the tree below account {parent_account}; then import,
   and set quotas: `slicewise tenant-quota apply --example`. Models lie in {model_repository}, on
   nodes and login hosts; [engines.triton] command in slicewise.toml is Triton's path on the nodes.
9. `slicewise doctor` on each host until it is clean. Observe for some days; then advise and
   enforce: section 7.
"""


def steps_text(answers: Answers, slurms: SlurmsOwn, written: Mapping[str, str]) -> str:
    """Return the steps in the order in which they are safe; ``written`` are the other files."""
    hosts = dict.fromkeys((answers.controller, answers.gateway, *answers.login_hosts))
    conf = [name for name in ("slurm.conf.lines", "cgroup.conf.lines") if name in written]
    added = (
        f"Read `{'` and `'.join(conf)}`:\n   a line takes the place of each one"
        " with its key, in files\n   that slurm.conf includes, too; a comment says what else to do."
        "\n   Then restart slurmctld and slurmd."
    )
    worth = "\n   First read `allocations.txt`: with other weights limits are worth other hours."
    prepared = {
        "environment": "put `environment` into /etc/slicewise,\n   ",
        "daemon.conf": "put `daemon.conf` into"
        " /etc/systemd/system/slicewise-daemon.service.d/,\n   then ",
    }
    return _STEPS.format(
        hosts=", ".join(hosts),
        controller=answers.controller,
        slurm_user=answers.slurm_user,
        gateway=answers.gateway,
        parent_account=answers.parent_account,
        model_repository=answers.model_repository,
        allocations=worth if "allocations.txt" in written else "",
        conf=added if conf else "slurm.conf has all that it needs.",
        drop_in="".join(text for name, text in prepared.items() if name in written),
        guide=GUIDE,
        script=PurePath(slurms.slurm_conf).with_name("job_submit.lua"),
    )
