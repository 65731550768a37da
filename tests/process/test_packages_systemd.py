"""Checks, at night, the packages' units where systemd is PID 1, with a real Slurm and HAProxy."""

import shutil
from pathlib import Path

import pytest
from installed_wheel import ROOT
from package_life import booted, packed

_OURS = "slicewise-daemon slicewise-launcher"
_SERVICES = f"{_OURS} haproxy"
_UNITS = f"{_SERVICES} haproxy-slicewise.socket"
FUNCTIONS = r"""
pid() { systemctl show --property=MainPID --value $1; }
active() { systemctl is-active "$@" | sort -u; }
# another UNIT PID: waits until it runs again, as another process.
another() {
    for _ in $(seq 600); do
        [ "$(active $1) $(pid $1)" != "active $2" ] && [ "$(active $1)" = active ] && break
        sleep 0.1
    done
    echo "$1 $(active $1) $(systemctl show --property=NRestarts --value $1)"
}
asked() {
    /opt/slicewise/bin/python -c '
import http.client
asked = http.client.HTTPConnection("127.0.0.1", 8080, timeout=30)
asked.request("GET", "/vision/sum/v2/health/ready")
print(asked.getresponse().status)'
}
installed() { dpkg-query -W -f '${Version} ' slicewise slicewise-controller slicewise-gateway; }
"""
ANSWERS = """
partitions = ["gpu"]
database_url = "postgresql://slicewise@127.0.0.1:5499/slicewise"
"""
_WATCHED = "/run/systemd/system/$unit.service.d"
_DPKG = "dpkg --force-confdef --force-confold"
_TOOK_OVER = (
    "slicewise ledger db upgrade >/dev/null && systemctl restart slicewise-daemon"
    " && slicewise gateway render >/dev/null && systemctl reload haproxy"
    f" && systemctl restart slicewise-launcher && active {_UNITS}; installed; asked"
)
STEPS = {
    "site": f"{FUNCTIONS}{ROOT}/tests/systemd_site.sh && systemctl is-active slurmctld",
    "install": "dpkg -i /run/packages/*_0.1.0-*.deb",
    "setup": "slicewise setup --answers /run/packages/answers.toml --output /run/out && cd /run/out"
    " && install -m 644 slicewise.toml /etc/slicewise/"
    " && install -m 640 -g slurm database-url /etc/slicewise/"
    " && export SLICEWISE_DATABASE_URL=$(cat database-url) && slicewise ledger db upgrade",
    # Shorter than in the units, so that the test need not wait two minutes.
    "watch": f"for unit in {_OURS}; do mkdir -p {_WATCHED};"
    f" printf '[Service]\\nWatchdogSec=15\\n' > {_WATCHED}/watch.conf; done",
    "daemon": "systemctl daemon-reload; systemctl enable --now slicewise-daemon"
    " && systemctl show --property=StatusText --value slicewise-daemon",
    "database": "slicewise ledger db grant slicewise_launcher --as launcher"
    " && install -m 600 -o slicewise /dev/stdin /etc/slicewise/launcher-database-url"
    " <<< postgresql://slicewise_launcher@127.0.0.1:5499/slicewise",
    "gateway": "sh /run/out/gateway.sh",
    # Another port, as docs/how-to/web.md says; systemd may open it below 1024.
    "page": "printf '[web]\\nlisten = \"127.0.0.1:443\"\\n' >> /etc/slicewise/slicewise.toml"
    " && systemctl restart slicewise-daemon && mkdir -p /etc/systemd/system/slicewise-web.socket.d"
    " && printf '[Socket]\\nListenStream=\\nListenStream=127.0.0.1:443\\n'"
    " > /etc/systemd/system/slicewise-web.socket.d/listen.conf && systemctl daemon-reload"
    " && systemctl enable --now slicewise-web && active slicewise-web slicewise-web.socket"
    " && ps -o user= -p $(pid slicewise-web)"
    " && slicewise doctor --section web && slicewise web login --json | grep -o 'http.*token='",
    "active": f"active {_UNITS}",
    "asked": "asked",
    "users": f"for unit in {_OURS}; do ps -o user= -p $(pid $unit); done",
    "killed": f"for unit in {_SERVICES}; do was=$(pid $unit); kill -KILL $was; asked;"
    " another $unit $was; done",
    "stopped": f"for unit in {_OURS}; do was=$(pid $unit); kill -STOP $was; another $unit $was;"
    " journalctl --unit=$unit | grep -c 'Watchdog timeout'; done",
    "rebalance": "systemctl start slicewise-rebalance.service; systemctl show --property=Result"
    " --value slicewise-rebalance.service; systemctl enable --now slicewise-rebalance.timer;"
    " active slicewise-rebalance.timer",
    "upgrade": "daemon=$(pid slicewise-daemon) launcher=$(pid slicewise-launcher);"
    f" {_DPKG} -i /run/packages/*_0.1.1-*.deb;"
    ' [ "$daemon $launcher" = "$(pid slicewise-daemon) $(pid slicewise-launcher)" ] && echo same',
    # By commands of the new version, before anything is restarted.
    "between": f"slicewise tenant list --json && active {_UNITS}; asked",
    "upgraded": _TOOK_OVER,
    "back": f"{_DPKG} -i /run/packages/*_0.1.0-*.deb >/dev/null 2>&1; {_TOOK_OVER}",
    "remove": "dpkg -r slicewise-gateway slicewise-controller slicewise",
    "removed": "systemctl list-units --all --plain --no-legend 'slicewise-*' 'haproxy-slicewise*'"
    " | grep -v not-found; find /etc/systemd -type l -name '*slicewise*'",
}

_URL = "postgresql://slicewise@127.0.0.1:5499/slicewise"
SETTINGS = """
[cluster]
name = "cluster"
partitions = ["gpu"]
[gpus."A100-80GB"]
weight = "1"
types = ["1g.10gb"]
[database]
url_file = "/etc/slicewise/database-url"
[launcher]
url_file = "/etc/slicewise/launcher-database-url"
"""
HOSTS = """\
[slicewise_controller]
one
[slicewise_gateway]
one
[slicewise_login]
one
[all:vars]
ansible_connection=local
ansible_python_interpreter=/usr/bin/python3
"""
_VALUES = (
    f"slicewise_toml=/run/packages/site.toml slicewise_database_url={_URL}"
    f" slicewise_launcher_database_url={_URL} slicewise_upgrade_ledger=true slicewise_start=true"
)
_PLAY = (
    "ansible-playbook -i /run/packages/hosts /run/packages/ansible/site.yml"
    f" -e '{_VALUES} slicewise_packages=/run/packages"
)
_PIDS = f"for unit in {_OURS}; do pid $unit; done"
ROLE = {
    "site": STEPS["site"],
    "play": f"{_PLAY}'",
    "runs": f"active {_UNITS}; asked; installed",
    "before": _PIDS,
    "upgrade": f"{_PLAY}/newer'",
    "after": _PIDS,
    "upgraded": f"active {_UNITS}; asked; installed",
}


@pytest.fixture
def packages(tmp_path: Path) -> Path:
    packed("deb", tmp_path)
    (tmp_path / "answers.toml").write_text(ANSWERS)
    return tmp_path


@pytest.mark.nightly
def test_units_run_come_back_and_outlive_an_upgrade(packages: Path) -> None:
    """With Debian's Slurm, munge, PostgreSQL and HAProxy under their own units."""
    said = booted(STEPS, packages)
    assert said["site"] == "active"
    assert said["daemon"].splitlines()[-1].startswith("leads, mode observe"), said
    assert said["active"] == "active", said["gateway"]
    assert said["asked"] == "401"
    assert said["users"].split() == ["slurm", "slicewise"]
    assert said["page"].splitlines()[-4:] == [
        *("active", "slicewise-web", "Looked at web: nothing to mend."),
        "http://127.0.0.1:443/login?token=",
    ]
    assert said["killed"].splitlines() == [
        *("401", "slicewise-daemon active 1"),
        *("401", "slicewise-launcher active 1"),
        *("401", "haproxy active 1"),
    ]
    assert said["stopped"].splitlines() == [
        *("slicewise-daemon active 2", "1", "slicewise-launcher active 2", "1")
    ]
    assert said["rebalance"].splitlines()[-1] == "active"
    assert said["rebalance"].splitlines()[0] == "success"
    assert "slicewise-daemon runs on with the former version" in said["upgrade"]
    assert "slicewise-launcher runs on with the former version" in said["upgrade"]
    assert said["upgrade"].splitlines()[-1] == "same"
    assert said["between"].split()[-2:] == ["active", "401"]
    assert said["upgraded"].split() == ["active", *["0.1.1-1"] * 3, "401"]
    assert said["back"].split() == ["active", *["0.1.0-1"] * 3, "401"]
    assert said["removed"] == "", said["remove"]


@pytest.mark.nightly
@pytest.mark.skipif(shutil.which("ansible-playbook") is None, reason="no Ansible here")
def test_the_role_starts_all_of_it_and_restarts_it_with_a_newer_version(packages: Path) -> None:
    (packages / "newer").mkdir()
    for newer in packages.glob("*_0.1.1-*"):
        newer.rename(packages / "newer" / newer.name)
    shutil.copytree(ROOT / "etc" / "ansible", packages / "ansible")
    (packages / "hosts").write_text(HOSTS)
    (packages / "site.toml").write_text(SETTINGS)
    said = booted(ROLE, packages)
    assert said["runs"].split() == ["active", "401", *["0.1.0-1"] * 3], said["play"]
    assert said["upgraded"].split() == ["active", "401", *["0.1.1-1"] * 3], said["upgrade"]
    assert set(said["before"].split()).isdisjoint(said["after"].split())
