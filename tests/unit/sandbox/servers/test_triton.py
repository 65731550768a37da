import os
import sys
from pathlib import Path

import pytest

from slicewise.cluster.language.errors import InvalidInputError
from slicewise.sandbox.servers import triton

pytestmark = pytest.mark.skipif(sys.version_info >= (3, 13), reason="Triton wants numpy 1")


def test_stage_writes_a_command_and_opens_everything_to_others(tmp_path: Path) -> None:
    before = os.umask(0o077)
    try:
        wrapper = triton.stage(tmp_path / "bin", tmp_path / "a dir's triton")
    finally:
        os.umask(before)
    assert wrapper.stat().st_mode & 0o777 == 0o755
    for path in (tmp_path / "a dir's triton").rglob("*"):
        needed = 0o005 if path.is_dir() else 0o004
        assert path.stat().st_mode & needed == needed, path


def test_stage_twice_replaces_what_was_there(tmp_path: Path) -> None:
    first = triton.stage(tmp_path / "bin", tmp_path / "triton")
    stray = tmp_path / "triton" / "stray"
    stray.touch()
    assert triton.stage(tmp_path / "bin", tmp_path / "triton") == first
    assert not stray.exists()


def test_a_missing_package_is_named_and_nothing_is_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(triton, "find_spec", lambda module: None)
    with pytest.raises(InvalidInputError, match="nvidia-pytriton") as caught:
        triton.stage(tmp_path / "bin", tmp_path / "triton")
    assert caught.value.refusal.code == "SW-PROGRAM"
    assert "with Python 3.11 or 3.12" in str(caught.value.refusal.hint)
    assert list(tmp_path.iterdir()) == []


def test_an_unreadable_libpython_is_passed_over(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    private = tmp_path / "private"
    private.mkdir(mode=0o700)
    (private / f"libpython{triton.PYTHON}.so.1.0").touch(mode=0o644)
    monkeypatch.setattr("sysconfig.get_config_var", lambda name: str(private))
    monkeypatch.setattr(triton, "SYSTEM_LIBPYTHON", tmp_path / "none.so")
    with pytest.raises(InvalidInputError, match="libpython") as caught:
        triton.stage(tmp_path / "bin", tmp_path / "triton")
    assert "apt-get install" in caught.value.refusal.hint


def test_a_private_file_is_copied_not_linked(tmp_path: Path) -> None:
    private, public = tmp_path / "private", tmp_path / "public"
    private.write_text("a")
    private.chmod(0o700)
    public.write_text("b")
    public.chmod(0o644)
    for source in (private, public):
        triton._link_or_copy(str(source), str(tmp_path / f"{source.name}.out"))
    assert (tmp_path / "private.out").stat().st_mode & 0o777 == 0o755
    assert private.stat().st_mode & 0o777 == 0o700
    assert (tmp_path / "public.out").samefile(public)


def test_remove_shared_memory_takes_only_this_directory_s_regions(tmp_path: Path) -> None:
    ours, theirs = tmp_path / "one" / "triton", tmp_path / "two" / "triton"
    shm = tmp_path / "shm"
    shm.mkdir()
    for owner in (ours, theirs):
        (shm / f"{triton._shm_prefix(owner)}4711_uuid").touch()
    (shm / "sem.other").touch()
    assert triton.remove_shared_memory(ours, shm) == 1
    assert {path.name for path in shm.iterdir()} == {
        "sem.other",
        f"{triton._shm_prefix(theirs)}4711_uuid",
    }


def test_the_wrapper_quotes_and_only_its_shm_prefix_wins_over_the_caller() -> None:
    text = triton._wrapper_text(
        python_home=Path("/usr"),
        library_path=Path("/l"),
        server=Path("/x y/$(touch z)/tritonserver"),
        backends=Path("/b"),
        shm_prefix="p_",
    )
    assert "exec '/x y/$(touch z)/tritonserver'" in text
    assert text.split('"$@"')[1].split() == [
        "\\",
        "--backend-config=python,shm-region-prefix-name=p_$$_",
    ]


def test_only_folders_of_these_users_are_removed(tmp_path: Path) -> None:
    place, elsewhere = tmp_path / "tmp", tmp_path / "elsewhere"
    (place / "python_env_a" / "lib").mkdir(parents=True)
    (place / "tmp.x").mkdir()
    elsewhere.mkdir()
    (place / "link").symlink_to(elsewhere)
    triton.remove_temporary([os.getuid() + 1], place)
    assert len(list(place.iterdir())) == 3
    triton.remove_temporary([os.getuid()], place)
    assert [one.name for one in place.iterdir()] == ["link"]
    assert elsewhere.is_dir()
