import os

import pytest

from slicewise.cluster.language.errors import SlicewiseError
from slicewise.sandbox.host import packages
from slicewise.sandbox.host.packages import (
    install_line,
    missing_packages,
    plugins,
    require,
    require_slurm,
    search_path,
)

HERE = (("sh", "dash"), ("/bin/s*", "dash"))
GONE = (("no-such-command", "first"), ("/no/such/*/file.so", "second"), ("nor-this", "first"))


def test_what_is_here_is_not_missing():
    assert missing_packages(HERE) == ()


def test_each_missing_package_is_named_once():
    assert missing_packages((*HERE, *GONE)) == ("first", "second")


def test_an_ordinary_user_is_told_to_use_sudo():
    assert install_line(("a", "b"), as_root=False).startswith("sudo apt-get install ")
    assert install_line(("a", "b"), as_root=True) == ("apt-get install --no-install-recommends a b")


def test_missing_packages_are_an_error_with_the_install_line():
    with pytest.raises(SlicewiseError, match="SW-PROGRAM") as caught:
        require(GONE)
    assert "--no-install-recommends first second" in caught.value.refusal.hint


def test_a_machine_without_any_program_is_told_of_what_a_minimal_debian_lacks(
    monkeypatch, tmp_path
):
    monkeypatch.setattr(packages, "SEARCH_PATH", str(tmp_path))
    # openssl makes the keys of gateway and replicas; ip is asked by replicas on several nodes.
    wanted = {"openssl", "haproxy", "munge", "iproute2"}
    assert wanted <= set(missing_packages(packages.EVERYTHING))


def test_the_sandbox_does_without_what_only_some_slurms_have():
    assert not {name for _, name in packages.BESIDE} & {name for _, name in packages.EVERYTHING}


@pytest.mark.parametrize("there", [(), ("auth_jwt",), ("libjwt",), ("auth_jwt", "libjwt")])
def test_tokens_want_the_plugin_and_its_library(monkeypatch, there):
    monkeypatch.setattr(packages, "_present", lambda what: any(name in what for name in there))
    assert packages.has_tokens() == (len(there) == 2)


def test_another_slurm_comes_first_and_brings_its_own_plugins():
    assert search_path("/opt/slurm-25.11").startswith(
        "/opt/slurm-25.11/sbin:/opt/slurm-25.11/bin:/usr"
    )
    assert plugins("/opt/slurm-25.11") == "/opt/slurm-25.11/lib/slurm"
    assert search_path("") == "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"


@pytest.fixture
def prefix(tmp_path):
    """A Slurm in a folder that all may enter, as are those above it in reality."""
    (tmp_path / "sbin").mkdir()
    (tmp_path / "sbin" / "slurmctld").touch()
    for each in (tmp_path, *tmp_path.parents):
        if each.stat().st_uid == os.geteuid():
            each.chmod(each.stat().st_mode | 0o011)
    return tmp_path


def test_a_prefix_without_slurm_is_refused_and_the_distribution_s_does_not_run(prefix, monkeypatch):
    require_slurm("")
    require_slurm(str(prefix))
    (prefix / "sbin" / "slurmctld").unlink()
    monkeypatch.setattr(packages, "PREFIX", str(prefix))
    with pytest.raises(SlicewiseError, match=r"no sbin/slurmctld.*SW-PROGRAM"):
        require(HERE)


def test_a_prefix_that_other_users_may_not_enter_is_refused_with_the_directory(prefix):
    prefix.chmod(0o700)
    with pytest.raises(SlicewiseError, match=f"may not enter {prefix}"):
        require_slurm(str(prefix))
