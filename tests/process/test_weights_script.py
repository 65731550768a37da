"""Tests what brings a model's files to a node: never torn, never another user's, never too many."""

import ast
import errno
import fcntl
import os
import shutil
import signal
import stat
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from waiting import PATIENCE_S, until

from slicewise.cluster.language.starts import FALLBACK_TEXTS
from slicewise.launcher.scripts import weights

SCRIPT = Path(weights.__file__)
MIB = 1 << 20
MUCH = 1 << 40
NOBODY = 65534
as_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root acts as other users, and mounts")


class Brought(NamedTuple):
    """The line that the script prints; of ``source`` a word that the launcher knows, too."""

    outcome: str
    size: int
    where: str
    word: str = ""

    @property
    def models(self) -> Path:
        return Path(self.where, weights.MODELS)


def words(cache: Path, repository: Path, *more: str, most: int = MUCH) -> tuple[str, ...]:
    return (sys.executable, "-I", str(SCRIPT), str(cache), str(most), str(repository), *more)


def read(line: str) -> Brought:
    outcome, seconds, size, where = line.removesuffix("\n").split(" ", 3)
    assert float(seconds) >= 0
    return said(outcome, int(size), where)


def said(outcome: str, size: int, where: str) -> Brought:
    if outcome != "source":
        return Brought(outcome, size, where)
    word, _, reason = where.partition(": ")
    assert word in FALLBACK_TEXTS
    return Brought(outcome, size, reason, word)


def bring(
    cache: Path,
    repository: Path,
    *more: str,
    most: int = MUCH,
    user: int | None = None,
    memory_mib: int | None = None,
) -> Brought:
    ran = subprocess.run(
        words(cache, repository, *more, most=most),
        stdout=subprocess.PIPE,
        text=True,
        check=True,
        timeout=PATIENCE_S,
        user=user,
        env={} if memory_mib is None else {"SLURM_MEM_PER_NODE": str(memory_mib)},
    )
    return read(ran.stdout)


def brought(cache: Path, repository: Path) -> Brought:
    """As ``bring``, in this process."""
    return said(*weights.brought(str(cache), MUCH, weights.WantedFiles(str(repository))))


@pytest.fixture
def place() -> Iterator[Path]:
    """A folder that every user comes to."""
    made = Path(tempfile.mkdtemp(prefix="slicewise-weights-"))
    made.chmod(0o755)
    yield made
    shutil.rmtree(made)


@pytest.fixture
def cache(place: Path) -> Path:
    folder = place / "cache"
    folder.mkdir()
    folder.chmod(0o1777)
    return folder


@pytest.fixture
def repository(place: Path) -> Path:
    return made_repository(place / "models")


def made_repository(folder: Path, size: int = MIB) -> Path:
    """A repository with two models, of which one has its weights by a link."""
    for name in ("m/1", "ensemble/1", "blobs"):
        (folder / name).mkdir(parents=True)
    (folder / "m" / "config.pbtxt").write_text("backend")
    (folder / "m" / "1" / "run").write_text("a program")
    (folder / "m" / "1" / "run").chmod(0o755)
    (folder / "blobs" / "w").write_bytes((folder.name.encode() * size)[:size])
    (folder / "m" / "1" / "w").symlink_to("../../blobs/w")
    (folder / "m" / "1" / "__pycache__").mkdir()
    (folder / "m" / "1" / "__pycache__" / "m.pyc").touch()
    os.utime(folder / "m" / "config.pbtxt", ns=(1, 1_700_000_000_000_000_007))
    return folder


def content(folder: Path) -> dict[str, bytes | None]:
    """All folders and files, by path; links are followed, and bytecode is left out."""
    return {
        str(path.relative_to(folder)): path.read_bytes() if path.is_file() else None
        for path in sorted(folder.rglob("*"))
        if "__pycache__" not in path.parts
    }


def entries(cache: Path) -> set[str]:
    return {path.name for path in (cache / str(os.geteuid())).iterdir()}


def key_of(brought: Brought) -> str:
    return Path(brought.where).name


@contextmanager
def locked(brought: Brought) -> Iterator[None]:
    """As the batch script of a job locks what its server reads."""
    entry = os.open(brought.where, os.O_RDONLY)
    try:
        fcntl.flock(entry, fcntl.LOCK_SH | fcntl.LOCK_NB)
        yield
    finally:
        os.close(entry)


def test_the_first_copies_and_the_next_finds_the_copy(cache: Path, repository: Path):
    first, second = bring(cache, repository), bring(cache, repository)
    assert (first.outcome, second.outcome) == ("copied", "hit")
    assert first[1:] == second[1:]
    assert content(second.models) == content(repository)
    assert first.size == sum(
        (repository / name).stat().st_size for name in ("m/config.pbtxt", "m/1/run", "blobs/w")
    )


def forget(models: Path) -> None:
    """Drop a copy's files from memory, so that the next reader asks the disk."""
    for path in files_in(models):
        with path.open("rb") as file:
            os.fsync(file.fileno())
            os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


def files_in(models: Path) -> list[Path]:
    return [path for path in models.rglob("*") if path.is_file()]


def pages_in_memory(path: Path) -> int:
    told = subprocess.run(
        ("fincore", "--bytes", "--noheadings", "--output", "PAGES", str(path)),
        capture_output=True,
        text=True,
        check=True,
    )
    return int(told.stdout)


def test_a_copy_is_read_into_memory_while_the_server_starts(cache: Path, place: Path):
    repository = made_repository(place / "large", 64 * MIB)
    models = bring(cache, repository).models
    forget(models)
    weights_file = models / "m" / "1" / "w"
    assert pages_in_memory(weights_file) == 0
    assert bring(cache, repository).outcome == "hit"
    whole = -(-weights_file.stat().st_size // os.sysconf("SC_PAGE_SIZE"))
    until(lambda: pages_in_memory(weights_file) == whole)


def test_what_fills_half_of_the_jobs_memory_is_not_read_ahead(cache: Path, place: Path):
    repository = made_repository(place / "large", 64 * MIB)
    models = bring(cache, repository).models
    forget(models)
    assert bring(cache, repository, memory_mib=127).outcome == "hit"
    assert pages_in_memory(models / "m" / "1" / "w") == 0


def test_a_copy_is_its_users_alone_and_has_no_links(cache: Path, repository: Path):
    where = Path(bring(cache, repository).where)
    modes = {path.name: stat.S_IMODE(path.lstat().st_mode) for path in where.rglob("*")}
    assert modes.pop("run") == 0o700
    folders = {path.name for path in where.rglob("*") if path.is_dir()}
    assert modes == {name: 0o700 if name in folders else 0o600 for name in modes}
    assert stat.S_IMODE(where.parent.stat().st_mode) == 0o700
    assert not [path for path in where.rglob("*") if path.is_symlink()]
    copied = where / weights.MODELS / "m" / "config.pbtxt"
    assert copied.stat().st_mtime_ns == 1_700_000_000_000_000_007


def test_only_what_a_server_reads_is_copied(cache: Path, repository: Path):
    whole = bring(cache, repository, "--model=m")
    assert set(content(whole.models)) == {"m", "m/config.pbtxt", "m/1", "m/1/run", "m/1/w"}
    for name in ("q4-00001-of-00002.gguf", "q4-00002-of-00002.gguf", "q8.gguf"):
        (repository / "m" / name).write_text(name)
    parts = bring(cache, repository, "--model=m", "--files=q4-?????-of-00002.gguf")
    files = {path.name for path in parts.models.rglob("*") if path.is_file()}
    assert files == {"q4-00001-of-00002.gguf", "q4-00002-of-00002.gguf"}


def test_adapters_that_come_and_go_make_no_other_copy(cache: Path, repository: Path):
    (repository / "m" / "adapter_config.json").touch()
    first = bring(cache, repository, "--model=m", "--no-adapters")
    (repository / "m" / "legal").mkdir()
    (repository / "m" / "legal" / "adapter_config.json").touch()
    second = bring(cache, repository, "--model=m", "--no-adapters")
    assert (first.outcome, second.outcome) == ("copied", "hit")
    assert "m/adapter_config.json" in content(second.models)
    assert "m/legal" not in content(second.models)
    assert bring(cache, repository, "--model=m").outcome == "copied"


def test_files_that_changed_are_copied_whatever_their_size_and_time(cache: Path, repository: Path):
    first = bring(cache, repository)
    program = repository / "m" / "1" / "run"
    before = program.stat()
    program.write_text("b program")
    os.utime(program, ns=(before.st_atime_ns, before.st_mtime_ns))
    second = bring(cache, repository)
    assert second.outcome == "copied"
    assert second.where != first.where
    assert content(second.models) == content(repository)


@pytest.mark.parametrize(
    ("kind", "part_ns", "outcome"),
    [
        ("fuse.sshfs", 7, "source"),
        ("squashfs", 7, "source"),
        ("nfs4", 0, "source"),
        ("", 0, "source"),
        ("nfs4", 7, "copied"),
        ("xfs", 7, "copied"),
    ],
)
def test_where_no_change_would_be_seen_nothing_is_copied(
    repository: Path, monkeypatch: pytest.MonkeyPatch, kind: str, part_ns: int, outcome: str
):
    """FUSE, images and some servers of NFS give a file's mtime as its ctime."""
    file_of, at_ns = weights._file, 1_700_000_000_000_000_000 + part_ns

    def without_ctime(path: str, status: os.stat_result) -> weights.File:
        return file_of(path, status)._replace(mtime_ns=at_ns, ctime_ns=at_ns)

    monkeypatch.setattr(weights, "_kinds", lambda: {repository.stat().st_dev: kind})
    monkeypatch.setattr(weights, "_file", without_ctime)
    cache = repository.parent / "cache"
    cache.mkdir()
    seen = brought(cache, repository)
    assert seen.outcome == outcome
    if outcome == "source":
        assert seen.word == "times"
        assert "has no time of its last change (ctime)" in seen.where
        assert seen.where.endswith(kind)


def test_it_pauses_before_each_chunk_is_read_and_keeps_nobody_waiting(
    cache: Path, repository: Path, monkeypatch: pytest.MonkeyPatch
):
    """Of a copy that is made each chunk is read twice: its checksum is of what was written."""
    (repository / "blobs" / "w").write_bytes(b"weights" * 1000)
    monkeypatch.setattr(weights, "_CHUNK_BYTES", 1000)
    wanted = weights.WantedFiles(str(repository))
    chunks = sum(-(-file.size // 1000) for file in wanted.look().distinct.values())
    pauses: list[bool] = []

    def pause() -> None:
        home = os.open(cache / str(os.geteuid()), os.O_RDONLY)
        # Shared: several threads pause at once, and a copier's lock is exclusive.
        fcntl.flock(home, fcntl.LOCK_SH | fcntl.LOCK_NB)
        os.close(home)
        pauses.append(True)

    outcome, *_ = weights.brought(str(cache), MUCH, wanted, pause=pause)
    assert (outcome, len(pauses)) == ("copied", 2 * chunks)


@pytest.mark.parametrize("changes", [1, 10])
def test_files_that_change_under_the_copy_are_not_served_from_it(
    cache: Path, repository: Path, monkeypatch: pytest.MonkeyPatch, changes: int
):
    """It copies again; where they change each time, the server reads the repository."""
    send, left = weights._send, [changes]

    def change_and_send(source: int, target_path: Path, *more: Any) -> None:
        send(source, target_path, *more)
        if left[0] and target_path.name == "w":
            left[0] -= 1
            with (repository / "blobs" / "w").open("r+b") as opened:
                opened.write(f"change {left[0]}".encode())

    monkeypatch.setattr(weights, "_send", change_and_send)
    last = brought(cache, repository)
    if changes == 1:
        assert last.outcome == "copied"
        assert content(last.models) == content(repository)
    else:
        assert (last.word, last.where) == (
            "changes",
            f"{repository} changes while it is copied",
        )
        assert entries(cache) == set()


def test_a_file_that_vanishes_under_the_copy_is_no_part_of_it(
    cache: Path, repository: Path, monkeypatch: pytest.MonkeyPatch
):
    take_room = weights.Cache._take_room

    def vanish(own: weights.Cache, part: Path, tree: weights.Tree, lacking: int) -> None:
        (repository / "m" / "1" / "run").unlink(missing_ok=True)
        take_room(own, part, tree, lacking)

    monkeypatch.setattr(weights.Cache, "_take_room", vanish)
    last = brought(cache, repository)
    assert last.outcome == "copied"
    assert content(last.models) == content(repository)


def test_a_copy_that_was_cut_off_at_any_moment_is_made_whole(cache: Path, place: Path):
    """Nothing of those that were killed is left."""
    repository = made_repository(place / "large", 24 * MIB)
    cut_off = 0
    for attempt in range(12):
        process = subprocess.Popen(words(cache, repository), stdout=subprocess.PIPE)
        time.sleep(0.02 + attempt * 0.011)
        process.kill()
        cut_off += process.wait() == -signal.SIGKILL
        process.communicate()
        brought = bring(cache, repository)
        assert brought.outcome in {"copied", "hit"}
        assert entries(cache) == {key_of(brought)}
        assert content(brought.models) == content(repository)
        shutil.rmtree(brought.where)
    assert cut_off


@contextmanager
def begun(cache: Path, repository: Path) -> Iterator[subprocess.Popen[str]]:
    """A process that has begun a copy, and waits until others have made room for theirs."""
    home = cache / str(os.geteuid())
    home.mkdir(0o700)
    with held(home):
        process = subprocess.Popen(words(cache, repository), stdout=subprocess.PIPE, text=True)
        until(lambda: any(map(is_locked, home.glob("*.part"))))
        yield process


@contextmanager
def held(folder: Path) -> Iterator[None]:
    opened = os.open(folder, os.O_RDONLY)
    try:
        fcntl.flock(opened, fcntl.LOCK_EX | fcntl.LOCK_NB)
        yield
    finally:
        os.close(opened)


def is_locked(folder: Path) -> bool:
    try:
        with held(folder):
            return False
    except BlockingIOError:
        return True


def test_one_that_is_told_to_end_leaves_nothing(cache: Path, repository: Path):
    with begun(cache, repository) as process:
        process.terminate()
        process.communicate(timeout=PATIENCE_S)
    assert process.returncode == 128 + signal.SIGTERM
    assert entries(cache) == set()


def test_of_those_that_start_at_once_one_copies(cache: Path, place: Path):
    repository = made_repository(place / "large", 64 * MIB)
    processes = [
        subprocess.Popen(
            words(cache, repository), stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
        )
        for _ in range(5)
    ]
    found = [read(process.communicate(timeout=PATIENCE_S)[0]) for process in processes]
    assert sorted(brought.outcome for brought in found) == ["copied", *["hit"] * 4]
    assert len({brought.where for brought in found}) == 1
    assert content(found[0].models) == content(repository)
    assert entries(cache) == {key_of(found[0])}


@pytest.mark.parametrize("is_killed", [False, True])
def test_one_waits_for_another_that_copies_and_does_it_if_that_one_dies(
    cache: Path, repository: Path, is_killed: bool
):
    with begun(cache, repository) as first:
        second = subprocess.Popen(
            words(cache, repository), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        )
        assert second.stderr is not None
        assert "waiting for another job's copy" in second.stderr.readline()
        if is_killed:
            first.kill()
            first.wait()
    first.communicate(timeout=PATIENCE_S)
    brought = read(second.communicate(timeout=PATIENCE_S)[0])
    assert brought.outcome == ("copied" if is_killed else "hit")
    assert content(brought.models) == content(repository)
    assert entries(cache) == {key_of(brought)}


@pytest.mark.parametrize("name", ["", "{key}", "{key}.part"])
def test_one_waits_no_longer_for_another_that_gets_nowhere(
    cache: Path, repository: Path, monkeypatch: pytest.MonkeyPatch, name: str
):
    """Its disk hangs, or it is stopped."""
    monkeypatch.setattr(weights, "_WAIT_S", 0.2)
    first = brought(cache, repository)
    folder = Path(first.where).parent / name.format(key=key_of(first))
    if folder.name != key_of(first):
        shutil.rmtree(first.where)
    folder.mkdir(0o700, exist_ok=True)
    with held(folder):
        refused = brought(cache, repository)
    assert (refused.word, refused.where) == (
        "locked",
        f"{folder} is locked by a job that gets nowhere",
    )
    assert brought(cache, repository).outcome in {"copied", "hit"}


def test_one_waits_for_another_as_long_as_it_copies(
    cache: Path, repository: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(weights, "_WAIT_S", 0.7)
    monkeypatch.setattr(weights, "_LEAST_BYTES", 4096)
    first = brought(cache, repository)
    part = Path(f"{first.where}.part")
    Path(first.where).rename(part)
    seen: list[Brought] = []
    waiter = threading.Thread(target=lambda: seen.append(brought(cache, repository)))
    with held(part), (part / "growing").open("wb", buffering=0) as growing:
        waiter.start()
        for _ in range(40):
            growing.write(bytes(8192))
            time.sleep(0.05)
    waiter.join(PATIENCE_S)
    assert [last.outcome for last in seen] == ["copied"]


def three_copies(cache: Path, place: Path) -> Sequence[Brought]:
    """Each of a MiB and some bytes; the first was used last."""
    found = [bring(cache, made_repository(place / str(number), MIB)) for number in range(3)]
    assert bring(cache, place / "0").outcome == "hit"
    return found


def test_what_was_used_least_recently_makes_room(cache: Path, place: Path):
    first, second, third = three_copies(cache, place)
    newest = bring(cache, made_repository(place / "3"), most=3 * MIB + MIB // 2)
    assert newest.outcome == "copied"
    assert entries(cache) == {key_of(brought) for brought in (first, third, newest)}
    assert key_of(second) not in entries(cache)


def test_what_a_job_reads_makes_no_room(cache: Path, place: Path):
    first, second, third = three_copies(cache, place)
    repository = made_repository(place / "3")
    with locked(second):
        newest = bring(cache, repository, most=3 * MIB + MIB // 2)
        assert entries(cache) == {key_of(brought) for brought in (first, second, newest)}
        with locked(first), locked(newest):
            refused = bring(cache, made_repository(place / "4"), most=3 * MIB + MIB // 2)
    assert (refused.word, refused.where) == (
        "room",
        f"{cache / str(os.geteuid())} has no room for 2 MiB",
    )
    assert entries(cache) == {key_of(brought) for brought in (first, second, newest)}
    assert third.outcome == "copied"


def test_a_file_alone_is_copied_without_those_beside_it(cache: Path, repository: Path):
    for text, outcome in (("a program", "copied"), ("a program", "hit"), ("another", "copied")):
        if (repository / "m/1/run").read_text() != text:
            (repository / "m/1/run").write_text(text)
        alone = bring(cache, repository / "m/1", "--model=run")
        assert (alone.outcome, alone.size) == (outcome, len(text))
        assert content(alone.models) == {"run": text.encode()}
    assert bring(cache, repository / "m/1", "--model=none").outcome == "source"


def test_nothing_goes_for_one_that_does_not_fit(cache: Path, place: Path):
    copies = three_copies(cache, place)
    large = made_repository(place / "large", 8 * MIB)
    refused = bring(cache, large, most=4 * MIB)
    assert refused.word == "limit"
    assert refused.where == "9 MiB are more than node_cache_gib allows"
    with locked(copies[0]):
        assert bring(cache, large, most=9 * MIB).outcome == "source"
    assert entries(cache) == {key_of(brought) for brought in copies}


def test_room_that_others_are_about_to_take_is_taken(cache: Path, repository: Path):
    part = cache / str(os.geteuid()) / f"{'0' * 32}.part"
    part.parent.mkdir(0o700)
    part.mkdir(0o700)
    (part / "w").touch()
    os.truncate(part / "w", 64 * MIB)
    with held(part):
        refused = bring(cache, repository, most=64 * MIB)
        assert (refused.outcome, part.exists()) == ("source", True)
    # Its job has ended.
    assert bring(cache, repository, most=64 * MIB).outcome == "copied"
    assert not part.exists()


def test_what_no_start_has_used_for_long_goes(cache: Path, place: Path):
    first, second, third = three_copies(cache, place)
    long_ago_s = time.time() - weights._UNUSED_S - 60
    for old in (first, second):
        os.utime(old.where, (long_ago_s, long_ago_s))
    with locked(first):
        assert bring(cache, place / "2").outcome == "hit"
    assert entries(cache) == {key_of(first), key_of(third)}
    # Its use makes it new.
    assert bring(cache, place / "0").outcome == "hit"
    assert bring(cache, place / "2").outcome == "hit"
    assert entries(cache) == {key_of(first), key_of(third)}


@pytest.mark.parametrize("next_one", ["copied", "hit"])
def test_what_a_node_has_left_that_went_down_is_removed(
    cache: Path, place: Path, repository: Path, next_one: str
):
    """No lock outlives its node, whatever it worked on."""
    kept = bring(cache, repository)
    for name in (f"{'0' * 32}.part", f"{'1' * 32}.gone.1.2"):
        (Path(kept.where).parent / name / "models").mkdir(0o700, parents=True)
        (Path(kept.where).parent / name / "models" / "w").touch()
    last = bring(cache, repository if next_one == "hit" else made_repository(place / "other"))
    assert last.outcome == next_one
    assert entries(cache) == {key_of(kept), key_of(last)}


@pytest.fixture
def small_disk(place: Path) -> Iterator[Path]:
    folder = place / "disk"
    folder.mkdir()
    done = subprocess.run(
        ("mount", "-t", "tmpfs", "-o", "size=16m,mode=1777", "none", str(folder)),
        capture_output=True,
        check=False,
    )
    if done.returncode:
        pytest.skip("this root may not mount")
    yield folder
    subprocess.run(("umount", str(folder)), check=True)


@as_root
def test_on_a_disk_that_fills_the_least_recent_goes_and_then_the_source_serves(
    small_disk: Path, place: Path
):
    first, second = (
        bring(small_disk, made_repository(place / str(size), size * MIB)) for size in (5, 6)
    )
    third = bring(small_disk, made_repository(place / "7", 7 * MIB))
    assert [brought.outcome for brought in (first, second, third)] == ["copied"] * 3
    assert entries(small_disk) == {key_of(second), key_of(third)}
    refused = bring(small_disk, made_repository(place / "17", 17 * MIB))
    assert refused.outcome == "source"
    assert entries(small_disk) == {key_of(second), key_of(third)}


@as_root
def test_on_a_disk_that_others_fill_meanwhile_no_more_goes_than_is_lacking(
    small_disk: Path, place: Path, monkeypatch: pytest.MonkeyPatch
):
    first, second = (
        bring(small_disk, made_repository(place / str(size), size * MIB)) for size in (4, 5)
    )
    seen = os.statvfs(place)
    monkeypatch.setattr(weights.os, "statvfs", lambda _: seen)
    third = brought(small_disk, made_repository(place / "9", 9 * MIB))
    assert (first.outcome, third.outcome) == ("copied", "copied")
    assert entries(small_disk) == {key_of(second), key_of(third)}
    refused = brought(small_disk, made_repository(place / "12", 12 * MIB))
    assert refused.outcome == "copied"
    assert entries(small_disk) == {key_of(refused)}
    with locked(refused):
        none = brought(small_disk, made_repository(place / "10", 10 * MIB))
    assert (none.outcome, none.where) == (
        "source",
        f"{small_disk / '0'} has no room for 11 MiB",
    )
    assert entries(small_disk) == {key_of(refused)}


def test_a_quota_that_stays_full_takes_no_more_than_one_copy_needs(
    cache: Path, place: Path, monkeypatch: pytest.MonkeyPatch
):
    first, second, third = three_copies(cache, place)

    def refuse(*_: object) -> None:
        raise OSError(errno.EDQUOT, "Disk quota exceeded")

    monkeypatch.setattr(weights, "_send", refuse)
    refused = brought(cache, made_repository(place / "3"))
    assert (refused.word, refused.where) == (
        "room",
        f"{cache / str(os.geteuid())}: Disk quota exceeded",
    )
    # The second was used least recently, and is as large as what is lacking.
    assert entries(cache) == {key_of(first), key_of(third)}
    assert second.outcome == "copied"


@as_root
def test_memory_counts_as_the_jobs(small_disk: Path, repository: Path):
    refused = bring(small_disk, repository, memory_mib=3)
    assert refused.word == "memory"
    assert refused.where.endswith("counts as this job's: that needs memory_mib = 4")
    beside = bring(small_disk, repository, f"--beside={MIB}", memory_mib=5)
    assert beside.where.endswith("counts as this job's: that needs memory_mib = 6")
    assert bring(small_disk, repository, memory_mib=4).outcome == "copied"
    assert bring(small_disk, repository, memory_mib=3).outcome == "hit"


def test_a_disk_does_not(cache: Path, repository: Path):
    assert bring(cache, repository, memory_mib=1).outcome == "copied"


@as_root
def test_no_other_user_comes_to_a_copy(cache: Path, repository: Path):
    where = bring(cache, repository).where
    reader = ("cat", f"{where}/models/m/1/w")
    assert subprocess.run(reader, capture_output=True, check=False).returncode == 0
    assert subprocess.run(reader, capture_output=True, check=False, user=NOBODY).returncode != 0
    others = bring(cache, repository, user=NOBODY)
    assert (others.outcome, Path(others.where).parent.name) == ("copied", str(NOBODY))


@as_root
def test_a_place_that_another_user_has_taken_is_not_used(cache: Path, repository: Path):
    for user, owner in ((0, NOBODY), (NOBODY, NOBODY - 1)):
        home = cache / str(user)
        home.mkdir()
        os.chown(home, owner, owner)
        home.chmod(0o777)
        refused = bring(cache, repository, user=user)
        assert (refused.outcome, refused.where) == (
            "source",
            f"{home} is user {owner}'s: only root can remove it",
        )
        assert list(home.iterdir()) == []


@as_root
@pytest.mark.parametrize("leads", ["folder", "nowhere"])
def test_no_link_of_another_user_is_followed(
    cache: Path, place: Path, repository: Path, leads: str
):
    """Root would write, or remove, where it leads."""
    target = place / "target"
    if leads == "folder":
        target.mkdir(0o700)
        (target / "kept").touch()
    home = cache / "0"
    subprocess.run(("ln", "-s", str(target), str(home)), check=True, user=NOBODY)
    refused = bring(cache, repository)
    assert (refused.outcome, refused.where) == ("source", f"{home} is no folder")
    assert leads == "nowhere" or [path.name for path in target.iterdir()] == ["kept"]
    assert target.exists() == (leads == "folder")


def test_a_folder_that_others_may_write_to_is_not_used(cache: Path, repository: Path):
    for folder, mode, what in (
        (cache, 0o777, f"{cache} has mode 0777: others can replace what is in it"),
        (cache, 0o775, f"{cache} has mode 0775: others can replace what is in it"),
    ):
        folder.chmod(mode)
        refused = bring(cache, repository)
        assert (refused.word, refused.where) == ("folder", what)
    cache.chmod(0o1777)
    home = cache / str(os.geteuid())
    home.mkdir()
    home.chmod(0o755)
    refused = bring(cache, repository)
    assert refused.outcome == "source"
    assert refused.where.startswith(f"{home} has mode 0755, not 0700")


@pytest.mark.parametrize("mode", [0o777, 0o775, 0o1777])
def test_a_folder_above_that_others_may_write_to_is_not_used(
    place: Path, repository: Path, mode: int
):
    above, cache = place / "above", place / "above" / "local" / "cache"
    cache.mkdir(parents=True)
    above.chmod(mode)
    seen = bring(cache, repository)
    if mode == 0o1777:
        assert seen.outcome == "copied"
    else:
        assert (seen.outcome, seen.where) == (
            "source",
            f"{above} has mode {mode:04o}: others can replace what is in it",
        )


def test_a_server_gets_no_path_by_a_link(cache: Path, place: Path, repository: Path):
    """Who may write where the link lies could lead it elsewhere later."""
    (place / "open").mkdir()
    (place / "open").chmod(0o777)
    (place / "open" / "link").symlink_to(cache)
    seen = bring(place / "open" / "link", repository)
    assert (seen.outcome, Path(seen.where).parent.parent) == ("copied", cache)


@as_root
@pytest.mark.parametrize("make", [Path.touch, os.mkfifo])
def test_what_is_no_folder_in_a_users_place_keeps_nothing_waiting(
    cache: Path, repository: Path, make: Callable[[Path], None]
):
    make(cache / "0")
    refused = bring(cache, repository)
    assert (refused.outcome, refused.where) == ("source", f"{cache / '0'} is no folder")


@as_root
def test_a_folder_of_another_user_than_root_is_not_used(cache: Path, repository: Path):
    os.chown(cache, NOBODY, NOBODY)
    refused = bring(cache, repository)
    assert (refused.outcome, refused.where) == ("source", f"{cache} is user {NOBODY}'s, not root's")


def test_without_the_folder_the_repository_is_read(cache: Path, repository: Path):
    cache.rmdir()
    refused = bring(cache, repository)
    assert (refused.outcome, refused.where) == ("source", f"{cache}: No such file or directory")


def replaced_by_a_link(file: Path) -> None:
    file.unlink()
    file.symlink_to("/etc/passwd")


def written_to(file: Path) -> None:
    file.write_text("c program")


def joined_by_another(file: Path) -> None:
    (file.parent / "model.py").touch()


@pytest.mark.parametrize("change", [Path.unlink, replaced_by_a_link, written_to, joined_by_another])
def test_a_copy_that_was_changed_is_made_again(
    cache: Path, repository: Path, change: Callable[[Path], None]
):
    first = bring(cache, repository)
    change(first.models / "m" / "1" / "run")
    with locked(first):
        refused = bring(cache, repository)
    assert refused.outcome == "source"
    assert refused.where == f"{first.where} was changed, and another job reads it"
    again = bring(cache, repository)
    assert (again.outcome, content(again.models)) == ("copied", content(repository))
    assert entries(cache) == {key_of(again)}


def overwritten(file: Path, text: bytes) -> None:
    """Written to in place, with its size and the time of its contents as they were."""
    before = file.stat()
    assert len(text) == before.st_size
    with file.open("r+b") as opened:
        opened.write(text)
    os.utime(file, ns=(before.st_atime_ns, before.st_mtime_ns))
    after = file.stat()
    assert (after.st_size, after.st_mtime_ns) == (before.st_size, before.st_mtime_ns)


def test_a_copy_that_was_written_to_is_made_again_whatever_its_size_and_time(
    cache: Path, repository: Path
):
    first = bring(cache, repository)
    overwritten(first.models / "m" / "1" / "run", b"b program")
    again = bring(cache, repository)
    assert (again.outcome, content(again.models)) == ("copied", content(repository))


@pytest.fixture
def reboot(monkeypatch: pytest.MonkeyPatch, place: Path) -> Callable[[], None]:
    """As if the node had been down; what this process brings afterwards comes in another boot."""

    def boot() -> None:
        (place / "boot_id").write_text(str(time.monotonic_ns()))
        monkeypatch.setattr(weights, "BOOT", place / "boot_id")

    return boot


def lost(copy: Brought, name: str) -> None:
    """The disk has kept what it knows of a file, and lost what is in it."""
    file, record = copy.models / name, Path(copy.where, weights.RECORD)
    before = file.stat()
    overwritten(file, bytes(before.st_size))
    text = record.read_text()
    assert str(before.st_ctime_ns) in text
    record.write_text(text.replace(str(before.st_ctime_ns), str(file.stat().st_ctime_ns)))


def test_a_file_that_a_disk_has_lost_in_a_power_cut_is_not_served(
    cache: Path, repository: Path, reboot: Callable[[], None]
):
    first = brought(cache, repository)
    lost(first, "m/1/run")
    reboot()
    again = brought(cache, repository)
    assert (again.outcome, content(again.models)) == ("copied", content(repository))


def test_after_a_boot_a_copy_is_read_once(
    cache: Path, repository: Path, reboot: Callable[[], None], monkeypatch: pytest.MonkeyPatch
):
    brought(cache, repository)
    reboot()
    were_read: list[Path] = []
    checksums = weights._checksums

    def reading(models: Path, *more: Any) -> Any:
        were_read.append(models)
        return checksums(models, *more)

    monkeypatch.setattr(weights, "_checksums", reading)
    assert [brought(cache, repository).outcome for _ in range(3)] == ["hit"] * 3
    assert len(were_read) == 1
    reboot()
    assert brought(cache, repository).outcome == "hit"
    assert len(were_read) == 2


@pytest.mark.parametrize("text", ["", "{", "[]", "{}", '{"changed_ns": {}}'])
def test_a_copy_of_which_little_is_recorded_is_made_again(cache: Path, repository: Path, text: str):
    first = bring(cache, repository)
    Path(first.where, weights.RECORD).write_text(text)
    assert [bring(cache, repository).outcome for _ in range(2)] == ["copied", "hit"]


def test_all_of_a_copy_is_on_the_disk_before_it_has_its_name_and_then_the_name_is(
    cache: Path, repository: Path, monkeypatch: pytest.MonkeyPatch
):
    done: list[tuple[str, str]] = []
    sync, rename = os.fsync, os.rename

    def synced(file: Any) -> None:
        number = file if isinstance(file, int) else file.fileno()
        done.append(("synced", str(Path(f"/proc/self/fd/{number}").readlink())))
        sync(file)

    def renamed(source: Any, target: Any) -> None:
        done.append(("renamed", str(target)))
        rename(source, target)

    monkeypatch.setattr(os, "fsync", synced)
    monkeypatch.setattr(os, "rename", renamed)
    where = brought(cache, repository).where
    named = done.index(("renamed", where))
    before = {path for what, path in done[:named] if what == "synced"}
    for path in (Path(where, weights.MODELS), *Path(where, weights.MODELS).rglob("*")):
        # Files with one content are one file, whichever of their names it was synced by.
        names = [path, *(p for p in Path(where).rglob("*") if p.is_file() and p.samefile(path))]
        assert before & {str(name).replace(where, where + ".part") for name in names}, path
    assert any(path.startswith(f"{where}.part/{weights.RECORD}") for path in before)
    assert done[named - 1] == ("synced", f"{where}.part")
    assert done[named + 1] == ("synced", str(Path(where).parent))


def test_bytecode_that_a_server_keeps_is_no_change(cache: Path, repository: Path):
    first = bring(cache, repository)
    (first.models / "m" / "1" / "__pycache__").mkdir()
    (first.models / "m" / "1" / "__pycache__" / "m.pyc").touch()
    (repository / "m" / "1" / "__pycache__" / "m.pyc").write_text("newer")
    assert bring(cache, repository).outcome == "hit"


@as_root
def test_files_that_its_user_may_not_read_are_not_copied(cache: Path, repository: Path):
    secret = repository / "m" / "1" / "run"
    secret.chmod(0o600)
    refused = bring(cache, repository, user=NOBODY)
    assert (refused.word, refused.where) == ("failed", f"{secret}: Permission denied")
    (repository / "m" / "1" / "run").unlink()
    (repository / "m" / "1" / "run").symlink_to("/etc/shadow")
    assert bring(cache, repository, user=NOBODY).outcome == "source"


def test_odd_things_in_a_repository_keep_nothing_waiting(cache: Path, repository: Path):
    os.mkfifo(repository / "m" / "fifo")
    (repository / "m" / "nowhere").symlink_to("none")
    (repository / "m" / "it's\n\udce4 \x1b[2J").touch()
    (repository / "m" / "q[4].gguf").touch()
    brought = bring(cache, repository)
    assert brought.outcome == "copied"
    names = {path.name for path in (brought.models / "m").iterdir()}
    assert names == {"config.pbtxt", "1", "it's\n\udce4 \x1b[2J", "q[4].gguf"}
    (repository / "m" / "\n\x1b[2J").symlink_to("..")
    refused = bring(cache, repository)
    assert refused.outcome == "source"
    assert refused.where.endswith("m/??[2J is a link to a folder above it")


def test_a_repository_of_too_many_files_is_read_itself(
    cache: Path, repository: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(weights, "MOST_FILES", 5)
    refused = weights.brought(str(cache), MUCH, weights.WantedFiles(str(repository)))
    assert refused == ("source", 0, f"files: {repository} has more than 5 files")


def test_its_syntax_is_that_of_python_3_8():
    ast.parse(SCRIPT.read_text(), feature_version=(3, 8))
