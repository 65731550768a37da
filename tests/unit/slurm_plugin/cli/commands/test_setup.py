"""Tests slicewise setup: what it guesses of Slurm, what it asks, and the files that it writes."""

import stat
import tomllib
from dataclasses import replace
from fractions import Fraction
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest
import typer
from builders.nodes import a_node
from stand_ins.setup_slurm import CONFIG, NODES, PARTITIONS, slurm_of_a_site
from typer.testing import CliRunner, Result

from slicewise.cluster.language.jobs import PartitionView
from slicewise.cluster.language.slurm.billing_limits import BillingLimit
from slicewise.cluster.settings.file import Settings
from slicewise.slurm_plugin.cli.commands import setup
from slicewise.slurm_plugin.rules.site.answers import guessed
from slicewise.slurm_plugin.rules.site.conf_checks import conf_checks
from slicewise.slurm_plugin.rules.site.facts import SlurmFacts, Wanted
from slicewise.slurm_plugin.rules.site.proposed_files import GUIDE

UNIT = Path(__file__).parents[5] / "etc" / "slicewise-daemon.service"


app = typer.Typer()
app.command()(setup.setup_command)


@pytest.fixture(autouse=True)
def _slurm(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    slurm_of_a_site(tmp_path, monkeypatch)


def run(tmp_path: Path, answers: str = "", **options: Any) -> Result:
    (tmp_path / "answers.toml").write_text(answers)
    words = ["--answers", str(tmp_path / "answers.toml"), "--output", str(tmp_path / "out")]
    return CliRunner().invoke(app, words, **options)


def test_slurm_says_most_answers() -> None:
    assert guessed(CONFIG, PARTITIONS, NODES) == {
        "cluster": "hpc",
        "partitions": ("gpu", "big"),
        "gpus": {
            "A100-80GB": ("1g.10gb", "3g.40gb"),
            "H200-141GB": ("1g.18gb", "3g.71gb"),
            "L40S": ("l40s",),
        },
        "slurm_user": "slurmadm",
        "controller": "head",
        "gateway": "head",
    }


def test_partitions_that_bill_gpus_are_the_managed_ones() -> None:
    """Those of CPU jobs on the same nodes bill what the site wants, and stay as they are."""
    house = (
        PartitionView("cpu", {"cpu": 1.0, "gres/gpu": 0.0}, ""),
        PartitionView("a100", {"cpu": 1.0, "gres/gpu": 20.0}, ""),
    )
    nodes = [replace(NODES[0], partitions=frozenset({"cpu", "a100"}))]
    assert guessed(CONFIG, house, nodes)["partitions"] == ("a100",)
    unbilled = (PartitionView("cpu", {}, ""), PartitionView("a100", {}, ""))
    assert guessed(CONFIG, unbilled, nodes)["partitions"] == ("cpu", "a100")


def test_a_slurm_conf_elsewhere_is_told_to_the_units(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The daemon's unit has no environment but this: it found no slurm.conf, and waited."""
    monkeypatch.setitem(CONFIG, "SLURM_CONF", "/cluster/slurm/etc/slurm.conf")
    assert run(tmp_path).exit_code == 0
    out = tmp_path / "out"
    assert (out / "environment").read_text() == "SLURM_CONF=/cluster/slurm/etc/slurm.conf\n"
    repartition = tomllib.loads((out / "slicewise.toml").read_text())["repartition"]
    assert repartition == {"slurm_conf": "/cluster/slurm/etc/slurm.conf"}
    steps = (out / "STEPS.md").read_text()
    assert "`environment` into /etc/slicewise," in steps
    assert "`mv job_submit.lua /cluster/slurm/etc/job_submit.lua`" in steps
    assert "EnvironmentFile=-/etc/slicewise/environment\n" in UNIT.read_text()


@pytest.mark.parametrize("hosts", ["", 'gateway = "gate"\n'])
def test_where_slurm_has_no_munge_other_hosts_ask_by_https(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, hosts: str
) -> None:
    monkeypatch.setitem(CONFIG, "AuthType", "auth/slurm")
    monkeypatch.setitem(CONFIG, "StateSaveLocation", "/var/spool/slurmctld")
    assert run(tmp_path, hosts).exit_code == 0
    out, key = tmp_path / "out", "/var/spool/slurmctld/jwt_hs256.key"
    daemon = tomllib.loads((out / "slicewise.toml").read_text())["daemon"]
    lines = (out / "slurm.conf.lines").read_text().splitlines()
    wants = bool(hosts)
    assert ("certificate" in daemon, daemon.get("slurm_jwt_key") == key) == (wants, wants)
    assert ("AuthAltTypes=auth/jwt" in lines) == wants
    assert (f"AuthAltParameters=jwt_key={key}" in lines) == wants
    assert "munged" not in "".join(lines)


def test_the_proposal_is_what_the_doctor_wants_beside_slurms_own_priorities(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(CONFIG, "PriorityType", "priority/multifactor")
    monkeypatch.setitem(CONFIG, "PriorityWeightFairShare", "20000")
    assert run(tmp_path).exit_code == 0
    settings = tomllib.loads((tmp_path / "out" / "slicewise.toml").read_text())
    assert settings["priority"] == {"max": 200_000}
    wanted = Wanted("hpc", ("gpu",), "observe", "slurmadm", {}, priority_max=200_000)
    found = conf_checks(SlurmFacts(CONFIG, PARTITIONS, NODES), wanted)
    assert "SW-CONF-WEIGHTS" not in {one.code for one in found}


def test_steps_name_the_guide_that_comes_with_the_packages(tmp_path: Path) -> None:
    assert run(tmp_path).exit_code == 0
    assert f"sections are those of\n{GUIDE}:" in (tmp_path / "out" / "STEPS.md").read_text()


def test_it_writes_proposals_and_changes_nothing_else(tmp_path: Path) -> None:
    before = {path: path.read_text() for path in tmp_path.iterdir()}
    url = "postgresql://slicewise:s3cr3t@db/slicewise"
    result = run(tmp_path, f'database_url = "{url}"\nlogin_hosts = ["login1"]\ngateway = "gate"\n')
    assert result.exit_code == 0, result.output
    out = tmp_path / "out"
    assert {path.name for path in out.iterdir()} == {
        *("slicewise.toml", "database-url", "slurm.conf.lines", "cgroup.conf.lines"),
        *("gres.conf.hint", "job_submit.lua", "daemon.conf", "gateway.sh", "answers.toml"),
        "STEPS.md",
    }
    assert {path: path.read_text() for path in before if path.name != "answers.toml"} == {
        path: text for path, text in before.items() if path.name != "answers.toml"
    }
    settings = Settings.model_validate(tomllib.loads((out / "slicewise.toml").read_text()))
    assert (settings.daemon.mode, settings.daemon.slurm_user) == ("observe", "slurmadm")
    assert settings.daemon.connect == ("head:6830",)
    assert settings.gpus["L40S"].whole == ("l40s",)
    assert settings.gateway.url == "http://gate:8080"
    assert "fit these models, too: H100-80GB" in (out / "slicewise.toml").read_text()

    secret = out / "database-url"
    assert (secret.read_text(), stat.S_IMODE(secret.stat().st_mode)) == (f"{url}\n", 0o600)
    others = [path for path in out.iterdir() if path != secret]
    assert not [path.name for path in others if "s3cr3t" in path.read_text()]

    lines = (out / "slurm.conf.lines").read_text().splitlines()
    assert "MpiParams=ports=21000-21999" in lines
    assert "AccountingStorageEnforce=associations,safe,limits,qos" in lines
    assert [line for line in lines if line.startswith("AccountingStorageTRES=gres/tmpdisk,gres")]
    assert "ConstrainDevices=yes" in (out / "cgroup.conf.lines").read_text()
    assert "User=slurmadm" in (out / "daemon.conf").read_text()
    script = (out / "job_submit.lua").read_text()
    assert script.startswith("-- the site's own")
    assert 'mode = "observe"' in script
    steps = (out / "STEPS.md").read_text()
    assert "on head, gate, login1" in steps
    assert max(map(len, steps.splitlines())) <= 100
    # They can be given again.
    again = tomllib.loads((out / "answers.toml").read_text())
    assert (again["gateway"], again["gpus"]["L40S"]) == ("gate", ["l40s"])


def test_slurm_conf_lines_end_no_slurmctld(tmp_path: Path) -> None:
    """Newer ones end where a partition has two lines; the site chooses what hints say."""
    assert run(tmp_path).exit_code == 0
    text = (tmp_path / "out" / "slurm.conf.lines").read_text()
    lines = text.splitlines()
    assert not [line for line in lines if line.startswith(("PartitionName", "PrivateData"))]
    assert "# add to the line of partition gpu: TRESBillingWeights=" in text
    assert "# if you choose so: PrivateData=" in text
    assert "loses all jobs" in text
    assert "slicewise_gate" not in text.replace("no QOS=slicewise_gate", "")


def test_the_script_is_there_before_slurmctld_starts_with_it(tmp_path: Path) -> None:
    assert run(tmp_path).exit_code == 0
    steps = (tmp_path / "out" / "STEPS.md").read_text()
    assert steps.index("mv job_submit.lua") < steps.index("restart slurmctld")


@pytest.mark.parametrize(
    ("answers", "says"),
    [
        ("colour = 1\n", "colour"),
        ("partitions = []\n", "partitions"),
        ("[gpus]\nX = ['1g.10gb', '1g.10gb']\nY = ['1g.10gb']\n", "1g.10gb"),
        ("= nonsense", "answers.toml"),
        ("[gpus]\n'A100-80GB' = ['a100_1g.99gb']\n", "1g.18gb, nvidia_h200_1g.18gb"),
        ("[gpus]\n'OTHER' = ['other_1g.10gb']\n", "models that can be cut: A30-24GB"),
    ],
)
def test_answers_that_can_not_be_taken_are_refused(tmp_path: Path, answers: str, says: str) -> None:
    result = run(tmp_path, answers)
    assert getattr(result.exception, "refusal").code == "SW-USAGE"  # noqa: B009
    assert says in str(result.exception)
    assert not (tmp_path / "out").exists()


def test_a_directory_that_is_there_is_left_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "out").mkdir()
    result = run(tmp_path)
    assert "exist yet" in str(result.exception)
    assert list((tmp_path / "out").iterdir()) == []
    # Before it asks anything, so that no answer is lost.
    monkeypatch.setattr(setup, "is_at_a_terminal", lambda: True)
    result = CliRunner().invoke(app, ["--output", str(tmp_path / "out")])
    assert "exist yet" in str(result.exception)
    assert result.output == ""


def test_it_asks_with_what_slurm_says_as_defaults(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(setup, "is_at_a_terminal", lambda: True)
    url = "postgresql://slicewise:s3cr3t@db/slicewise"
    said = f"\ngpu, big\nscience\n\n\ngate\nlogin1, login2,\n{url}\n/models\n"
    words = ["--output", str(tmp_path / "out")]
    result = CliRunner().invoke(app, words, input=said)
    assert result.exit_code == 0, result.output
    assert "Slurm's ClusterName [hpc]:" in result.output
    assert "Nothing is changed" in result.output
    assert "A100-80GB, H200-141GB, L40S. Correct them" in " ".join(result.output.split())
    assert "[]" not in result.output
    given = tomllib.loads((tmp_path / "out" / "answers.toml").read_text())
    assert (given["partitions"], given["parent_account"]) == (["gpu", "big"], "science")
    assert (given["login_hosts"], given["controller"]) == (["login1", "login2"], "head")
    assert given["model_repository"] == "/models"
    assert (tmp_path / "out" / "database-url").read_text() == f"{url}\n"
    assert "s3cr3t" not in result.output


def test_a_database_that_the_host_knows_already_is_kept_and_not_shown(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By section 2 of the guide it is there: a proposal without its password took its place."""
    url = "postgresql://slicewise:s3cr3t@db:5544/slicewise"
    monkeypatch.setenv("SLICEWISE_CONFIG", str(tmp_path / "etc" / "slicewise.toml"))
    (tmp_path / "etc").mkdir()
    (tmp_path / "etc" / "database-url").write_text(f"{url}\n")
    monkeypatch.setattr(setup, "is_at_a_terminal", lambda: True)
    words = ["--output", str(tmp_path / "asked")]
    asked = CliRunner().invoke(app, words, input="\n" * 12)
    assert (run(tmp_path).exit_code, asked.exit_code) == (0, 0)
    for place in ("out", "asked"):
        assert (tmp_path / place / "database-url").read_text() == f"{url}\n"
    assert "s3cr3t" not in asked.output
    assert "etc/database-url]" in asked.output.replace("\n", "")


def test_it_asks_nothing_where_slurm_has_no_gpus(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(setup, "is_at_a_terminal", lambda: True)
    monkeypatch.setattr(setup, "guessed", lambda *_: {"cluster": "hpc"})
    result = CliRunner().invoke(app, ["--output", str(tmp_path / "out")])
    assert "no typed GPUs yet" in str(result.exception)
    assert "--answers" in str(result.exception)
    assert "ClusterName" not in result.output


def test_without_a_terminal_it_wants_a_file(tmp_path: Path) -> None:
    result = CliRunner().invoke(app, ["--output", str(tmp_path / "out")])
    assert "--answers" in str(result.exception)


def test_types_whose_model_can_not_be_told_are_asked_or_left_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Never priced as whole GPUs, nor as those of the first model of a table."""
    odd = replace(NODES[0], name="a3", gpus={"a100_1g.10gb": 3})
    slurm_of_a_site(tmp_path, monkeypatch, (*NODES, odd))
    result = run(tmp_path)
    said = "a100_1g.10gb (the GPU is A100-40GB or A100-80GB, which differ in price)"
    assert said in " ".join(result.output.split())
    text = (tmp_path / "out" / "slicewise.toml").read_text()
    assert f"# Left out, and without a price until [gpus] names its model: {said}." in text
    assert "a100_1g.10gb=" not in (tmp_path / "out" / "slurm.conf.lines").read_text()

    monkeypatch.setattr(setup, "is_at_a_terminal", lambda: True)
    answers = "A100-40GB" + "\n" * 12
    asked = CliRunner().invoke(app, ["--output", str(tmp_path / "asked")], input=answers)
    assert asked.exit_code == 0, asked.output
    settings = tomllib.loads((tmp_path / "asked" / "slicewise.toml").read_text())
    assert settings["gpus"]["A100-40GB"]["types"] == ["a100_1g.10gb"]
    assert "Left out" not in asked.output


def test_parts_without_a_profile_in_their_names_are_never_whole_gpus(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Neither by a guess, nor by an answer that names their model."""
    odd = replace(NODES[0], name="a3", gpus={"a100_1g.10gb": 7, "a100_20gb": 2})
    slurm_of_a_site(tmp_path, monkeypatch, (*NODES, odd))
    refused = str(run(tmp_path, "[gpus]\nA100-80GB = ['a100_20gb']\n").exception)
    assert "A100-80GB has no MIG profile a100_20gb" in refused
    result = run(tmp_path)
    assert "a100_20gb (it may be a part of a GPU" in " ".join(result.output.split())
    settings = tomllib.loads((tmp_path / "out" / "slicewise.toml").read_text())
    assert "a100_1g.10gb" in settings["gpus"]["A100-80GB"]["types"]
    assert "a100_20gb" not in str(settings)

    monkeypatch.setattr(setup, "is_at_a_terminal", lambda: True)
    asked = CliRunner().invoke(app, ["--output", str(tmp_path / "asked")], input="\n" * 12)
    assert asked.exit_code == 0, asked.output
    assert "GPU model of a100_20gb" not in asked.output


def test_where_no_model_can_be_told_the_answers_must_name_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    slurm_of_a_site(tmp_path, monkeypatch, (a_node("a1", gpus={"gold_1g.10gb": 3}),))
    refused = str(run(tmp_path).exception)
    assert "gpus: name there the model of gold_1g.10gb (the GPU is A100-40GB or" in refused
    assert run(tmp_path, "[gpus]\nA100-40GB = ['gold_1g.10gb']\n").exit_code == 0


def test_it_says_what_allocations_are_worth_and_proposes_the_unit_that_keeps_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Before anything is changed: 1000 for a slice would leave a hundredth of the hours."""
    nodes = (a_node("h1", gpus={"h200": 8}, cpus=128),)
    weighs = (PartitionView("gpu", {"cpu": 0.0, "gres/gpu": 16.0}, ""),)
    limits = (
        BillingLimit("GrpTRESMins", 500_000, 20_000, "physics", cluster="hpc"),
        BillingLimit("GrpTRES", 64, 0, qos="long"),
    )
    slurm_of_a_site(tmp_path, monkeypatch, nodes, weighs, limits)
    result = run(tmp_path)
    assert result.exit_code == 0, result.output
    said = (
        "Account physics: GrpTRESMins=billing=500000, of which 480000 are left: 500 GPU-hours"
        " (3500 slice-hours) now, 500 GPU-hours (3500 slice-hours) then\n"
        "QOS long: GrpTRES=billing=64, 4 GPUs (28 slices) now, 4 GPUs (28 slices) then\n"
    )
    assert said in result.output
    out = tmp_path / "out"
    assert said in (out / "allocations.txt").read_text()
    settings = Settings.model_validate(tomllib.loads((out / "slicewise.toml").read_text()))
    assert settings.billing.per_slice == Fraction(16, 7)
    assert 'GRES/gpu:h200=16"' in (out / "slurm.conf.lines").read_text()
    assert "First read `allocations.txt`" in (out / "STEPS.md").read_text()


def test_where_no_unit_keeps_allocations_it_says_the_commands_that_do(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    nodes = (a_node("h1", gpus={"1g.18gb": 1, "3g.71gb": 2}, cpus=8),)
    weighs = (PartitionView("gpu", {"gres/gpu": 1.0}, ""),)
    limits = (BillingLimit("GrpTRESMins", 1000, 200, "physics", cluster="hpc"),)
    slurm_of_a_site(tmp_path, monkeypatch, nodes, weighs, limits)
    assert run(tmp_path).exit_code == 0
    # Three devices of 8 slices bill 3 now; whole numbers need 2 for a slice.
    text = (tmp_path / "out" / "allocations.txt").read_text()
    assert "a slice bills 0.375 on average where all managed nodes are in use, then 2\n" in text
    set_to = 200 + round(800 * 2 / 0.375)
    command = "sacctmgr modify account where name=physics cluster=hpc set GrpTRESMins=billing="
    assert f"    to keep it, with the new weights: {command}{set_to}\n" in text


class TestServicesOnly:
    """``--services-only``: what brings up services on one host, and nothing for quotas."""

    def run(self, tmp_path: Path, answers: str = "") -> tuple[Result, Path]:
        (tmp_path / "answers.toml").write_text(answers)
        out = tmp_path / "out"
        words = ["--answers", str(tmp_path / "answers.toml"), "--output", str(out)]
        return CliRunner().invoke(app, [*words, "--services-only"]), out

    def test_it_writes_a_script_and_no_line_of_quotas(self, tmp_path: Path) -> None:
        result, out = self.run(tmp_path)
        assert result.exit_code == 0, result.output
        assert {path.name for path in out.iterdir()} == {
            *("slicewise.toml", "database-url", "launcher-database-url", "database.sql"),
            *("slurm.conf.lines", "daemon.conf", "gateway.sh", "services.sh", "STEPS.md"),
        }
        settings = Settings.model_validate(tomllib.loads((out / "slicewise.toml").read_text()))
        assert (settings.daemon.mode, settings.daemon.listen) == ("observe", "")
        lines = [
            line for line in (out / "slurm.conf.lines").read_text().splitlines() if line[0] != "#"
        ]
        assert lines == ["MpiParams=ports=21000-21999", "RequeueExitHold=187"]
        script = (out / "services.sh").read_text()
        assert "install -m 640 -g slurmadm database-url /etc/slicewise/" in script
        assert "slurm.conf" not in script.replace("slurm.conf.lines", "")
        assert not any(word in script for word in ("scontrol", "sacctmgr", "job_submit"))

    def test_passwords_are_new_each_time_and_only_root_reads_them(self, tmp_path: Path) -> None:
        (tmp_path / "a").mkdir()
        (tmp_path / "b").mkdir()
        _, first = self.run(tmp_path / "a")
        _, second = self.run(tmp_path / "b")
        secret = {"database-url", "launcher-database-url", "database.sql"}
        for name in secret:
            assert (first / name).read_text() != (second / name).read_text()
            assert stat.S_IMODE((first / name).stat().st_mode) == 0o600
        urls = [(first / name).read_text().strip() for name in sorted(secret - {"database.sql"})]
        for url in urls:
            password = urlsplit(url).password
            assert password is not None
            assert len(password) == 32
            said = [path.name for path in first.iterdir() if password in path.read_text()]
            assert set(said) <= secret

    def test_a_database_with_a_password_is_taken_as_it_is(self, tmp_path: Path) -> None:
        url = "postgresql://own%40er:it%27s@localhost:5499/books"
        result, out = self.run(tmp_path, f'database_url = "{url}"\n')
        assert result.exit_code == 0, result.output
        assert (out / "database-url").read_text() == f"{url}\n"
        launchers = (out / "launcher-database-url").read_text()
        assert launchers.startswith("postgresql://slicewise_launcher:")
        assert launchers.endswith("@localhost:5499/books\n")
        statements = (out / "database.sql").read_text()
        assert "ALTER ROLE \"own@er\" LOGIN PASSWORD 'it''s';" in statements
        assert 'CREATE DATABASE "books" OWNER "own@er"' in statements
        assert "--port=5499" in (out / "services.sh").read_text()

    @pytest.mark.parametrize(
        "answer",
        [
            'gateway = "gate"',
            'login_hosts = ["login1"]',
            # The script would make roles and database here, and the daemon look for them there.
            'database_url = "postgresql://slicewise@db1/slicewise"',
            'database_url = "postgresql://slicewise@/slicewise?host=db1"',
        ],
    )
    def test_other_hosts_are_refused(self, tmp_path: Path, answer: str) -> None:
        result, out = self.run(tmp_path, answer)
        assert "--services-only is for one host" in str(result.exception)
        assert not out.exists()
