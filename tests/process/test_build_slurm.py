import hashlib
import os
import subprocess
from pathlib import Path

import build_slurm
import pytest
from build_slurm import Build, BuildError, build, check_sha256

ROOT = Path(build_slurm.__file__).parent.parent
CONFIGURE = """#!/bin/sh
# The least of a configure: a Makefile in each of the two folders from which Slurm is installed.
here=$(dirname "$0")
for each; do case $each in --prefix=*) prefix=${each#--prefix=};; esac; done
mkdir -p src
echo "install-pkgincludeHEADERS:" >Makefile
cat >src/Makefile <<EOF
all:
\t@test ! -e $here/broken
\t@echo "  CC   one.lo"
install:
\tmkdir -p \\$(DESTDIR)$prefix/sbin \\$(DESTDIR)$prefix/lib
\techo "for $prefix" >\\$(DESTDIR)$prefix/sbin/slurmctld
\ttouch \\$(DESTDIR)$prefix/lib/libslurm.a
EOF
"""


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    """A source that builds in no time."""
    place = tmp_path / "slurm-25.11.7"
    (place / "src").mkdir(parents=True)
    (place / "src" / "one.c").touch()
    (place / "META").write_text("  Api_age: 0\n  Major:\t\t25\n  Version:\t25.11.7\n")
    (place / "configure").write_text(CONFIGURE)
    (place / "configure").chmod(0o755)
    return place


@pytest.fixture
def wanted(tree: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Build:
    """The headers of Lua are there, whatever this machine has."""
    (tmp_path / "lua5.3.pc").touch()
    pkg_config = tmp_path / "bin" / "pkg-config"
    pkg_config.parent.mkdir()
    pkg_config.write_text(f"#!/bin/sh\necho {tmp_path}\n")
    pkg_config.chmod(0o755)
    monkeypatch.setenv("PATH", str(pkg_config.parent), prepend=":")
    return Build("25.11.7", tree, tmp_path / "builds")


def packed(tree: Path) -> Path:
    place = tree.with_suffix(".7.tar.gz")
    subprocess.run(("tar", "-czf", place, "-C", tree.parent, tree.name), check=True)
    return place


def test_a_tree_becomes_a_prefix_that_was_made_for_its_place(wanted: Build) -> None:
    prefix = build(wanted)
    assert prefix == wanted.builds / "25.11.7"
    assert (prefix / "sbin" / "slurmctld").read_text() == f"for {prefix}\n"
    assert not (prefix / "lib" / "libslurm.a").exists()
    assert {one.name for one in wanted.builds.iterdir()} == {"25.11.7", "25.11.7.log"}


def test_so_does_a_tarball(wanted: Build, tree: Path) -> None:
    tarball = packed(tree)
    sha256 = hashlib.sha256(tarball.read_bytes()).hexdigest()
    prefix = build(Build("25.11.7", tarball, wanted.builds, sha256))
    assert (prefix / "sbin" / "slurmctld").exists()


def test_what_is_there_is_not_built_again(wanted: Build) -> None:
    (build(wanted) / "mark").touch()
    (wanted.source or Path()).joinpath("configure").unlink()
    assert (build(wanted) / "mark").exists()


def test_a_build_that_fails_leaves_no_prefix_and_names_its_log(wanted: Build, tree: Path) -> None:
    (tree / "broken").touch()
    with pytest.raises(BuildError, match=r"25\.11\.7\.log says why"):
        build(wanted)
    assert {one.name for one in wanted.builds.iterdir()} == {"25.11.7.log"}


def test_another_version_than_asked_for_is_refused(wanted: Build, tree: Path) -> None:
    (tree / "META").write_text("  Version:\t25.05.3\n")
    with pytest.raises(BuildError, match=r"is Slurm 25\.05\.3, not 25\.11\.7"):
        build(wanted)


def test_a_folder_without_slurm_is_refused(wanted: Build, tmp_path: Path) -> None:
    with pytest.raises(BuildError, match="no source of Slurm"):
        build(Build("25.11.7", tmp_path, wanted.builds))


def test_another_tarball_than_the_expected_one_is_refused(tree: Path) -> None:
    with pytest.raises(BuildError, match=f"not {'0' * 64}"):
        check_sha256(packed(tree), "0" * 64)


def test_a_tarball_that_is_known_by_name_is_checked_without_being_asked(tmp_path: Path) -> None:
    forged = tmp_path / "slurm-wlm_24.11.5.orig.tar.gz"
    forged.write_bytes(b"something else")
    with pytest.raises(BuildError, match="not e1a5547e"):
        check_sha256(forged)


def test_of_an_unknown_tarball_the_hash_is_shown(
    tree: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    tarball = packed(tree)
    check_sha256(tarball)
    assert hashlib.sha256(tarball.read_bytes()).hexdigest() in capsys.readouterr().out


def test_without_a_source_the_tarball_is_downloaded(
    wanted: Build, tree: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    place = f"file://{packed(tree)}"
    monkeypatch.setattr(build_slurm, "_DOWNLOAD", place.replace("25.11.7", "{version}"))
    prefix = build(Build("25.11.7", None, wanted.builds))
    assert (prefix / "sbin" / "slurmctld").exists()
    with pytest.raises(BuildError, match=r"25\.11\.9.*SOURCE="):
        build(Build("25.11.9", None, wanted.builds))


def test_make_clean_keeps_built_slurms(tmp_path: Path) -> None:
    makefile = Path(__file__).parents[2] / "Makefile"
    removed = ("build/dist", ".venv-docs", ".venv-packages")
    for name in ("build/slurm", *removed):
        (tmp_path / name).mkdir(parents=True)
    subprocess.run(("make", "-f", makefile, "clean"), cwd=tmp_path, check=True, capture_output=True)
    assert (tmp_path / "build/slurm").is_dir()
    assert not any((tmp_path / name).exists() for name in removed)


def planned(*target: str) -> str:
    """What make would run."""
    words = ("make", "--no-print-directory", "-C", str(ROOT), "-n", *target)
    environment = {"PATH": os.environ["PATH"]}
    return subprocess.run(words, env=environment, capture_output=True, text=True, check=True).stdout


def test_make_builds_no_slurm_of_the_projects_own_version() -> None:
    assert "build_slurm.py  --builds" in planned("slurm")
    assert "build_slurm.py 25.11.7 --builds" in planned("slurm", "VERSION=25.11.7")


def test_the_nightly_matrix_runs_what_is_marked_nightly_and_the_integration_tests_once() -> None:
    said = planned("nightly")
    assert said.count("slurm_matrix.py") == 1
    assert '-m "not integration"' in said
    makefile = (ROOT / "Makefile").read_text()
    assert "\nnightly: export SLICEWISE_NIGHTLY := 1\n" in makefile
