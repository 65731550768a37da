"""Brings a model's files, or an image's, to the node: copies them once into a folder there.

    python3 weights.py CACHE MOST_BYTES REPOSITORY [--model NAME] [--files PATTERN] [--no-adapters]
        [--beside BYTES] [--pauses]

Prints one line: ``hit SECONDS BYTES ENTRY`` if the files lie on this node, ``copied ...`` if they
do now, ``source SECONDS BYTES WORD: REASON`` if the server has to read REPOSITORY itself: whatever
goes wrong here, servers start. What they read lies below ENTRY/models, named as in REPOSITORY. NAME
may be a file there: then it alone is copied. This job has copied BYTES before. With ``--pauses`` no
file is read on while standard input has nothing to read and its writer lives.

All that a user's jobs keep lies in CACHE/UID, which only this user may enter:

    KEY/models/...     a whole copy, never changed; the time of KEY is that of its last use
    KEY/record         when each file of it was changed last, its checksum, and in which boot of the
                       node all of it was read last
    KEY.part/...       a copy that is being made, locked by who makes it
    KEY.gone.../...    what is being removed

The batch script holds a shared lock (flock) on ENTRY while its server runs: what is locked is not
removed. Locks go with those who held them, so a job that was killed leaves none.

KEY stands for the source's files: path, size, times, device, inode and mode of each. To compare
contents, one would read all that the copy saves to read. No user can set the time of a file's last
change (ctime), so a file that was written again and has its old time is seen, too. Files of a file
system that has no such time of its own, as FUSE's and images, are not copied. Each file is opened
before it is looked at: NFS asks its server then, and answers from memory otherwise.

A copy's own files are known by size and both times, so what anything but this script has written to
them is seen. It is read and compared by checksums at the first start after each boot of the node:
then its disk may have lost what it had said it had written.

This file travels inside the batch script and runs on the node, as the job's user, with nothing but
Python 3.8 and its standard library.
"""

from __future__ import annotations

import argparse
import errno
import fcntl
import hashlib
import json
import os
import re
import select
import shutil
import signal
import stat
import sys
import time
import zlib
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from fnmatch import fnmatchcase
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple, NoReturn

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

MODELS = "models"
RECORD = "record"
BOOT = Path("/proc/sys/kernel/random/boot_id")
MOST_FILES = 100_000
"""Of one model repository: each is looked at twice before its first server starts."""
_FREE_SHARE = 0.05
"""Share of the disk that is left free: others use it, too."""
_UNUSED_S = 30 * 24 * 3600.0
"""Seconds after which a copy goes that no start has used, whether its room is needed or not."""
_TRIES = 3
_WAIT_S = 60.0
"""Seconds that a start waits for who has locked something and gets nowhere."""
_LEAST_BYTES = 256 << 20
"""What a copy must write in ``_WAIT_S`` so that others go on waiting for it."""
_POLL_S = 0.05
_CHUNK_BYTES = 8 << 20
_AHEAD_BYTES = 128 << 10
"""What is asked for at once of what is read ahead: the kernel's own read-ahead is often no more,
and it leaves out what is beyond that."""
_READERS = 4
"""Threads that compute checksums: so many read as fast as most disks, and take 32 MiB."""
_KEY = re.compile(r"[0-9a-f]{32}")
_PART, _GONE = ".part", ".gone."
_IN_MEMORY = ("tmpfs", "ramfs")
_TIMELESS = ("squashfs", "erofs", "iso9660", "udf", "cramfs", "romfs", "vfat", "msdos", "exfat")
"""File systems that keep no time of a file's last change; of FUSE some do."""
_SECOND_NS = 10**9
_FULL = (errno.ENOSPC, errno.EDQUOT)
_BYTECODE = "__pycache__"
"""What Python keeps of a model's modules: a server may write it, and it is no part of the model."""
_ADAPTER = "adapter_config.json"
_OTHERS, _OTHERS_WRITE = 0o077, 0o022
_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC
_NEW = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW


class NotCachedError(Exception):
    """Why the server has to read the repository itself: ``WORD: REASON``, for the job's log."""

    def __init__(self, word: str, reason: str) -> None:
        """``word`` is one that the launcher knows (``cluster/language/starts.py``)."""
        super().__init__(f"{word}: {reason}")


class SourceChangedError(Exception):
    """The repository is no longer as it was when its copy began."""


class FullError(Exception):
    """The disk, or the user's quota there, is full, whatever it says of its free room."""

    def __init__(self, words: str, lacking: int) -> None:
        """``lacking`` bytes of the copy are not written."""
        super().__init__(words)
        self.lacking = max(1, lacking)


class File(NamedTuple):
    """A file of a repository: two that agree in all of this have the same content."""

    path: str
    size: int
    mtime_ns: int
    ctime_ns: int
    device: int
    inode: int
    mode: int

    @property
    def content(self) -> tuple[int, ...]:
        """All but its path: the same for two links to one file."""
        return self[1:]

    @property
    def copied_mode(self) -> int:
        """The mode of its copy: only its user reads it, and runs what could be run."""
        return self.mode & stat.S_IXUSR | stat.S_IRUSR | stat.S_IWUSR


class Tree(NamedTuple):
    """All folders and files below a folder, in the order of their paths."""

    folders: tuple[str, ...]
    files: tuple[File, ...]

    @property
    def distinct(self) -> dict[tuple[int, ...], File]:
        """The first file of each content."""
        return {file.content: file for file in reversed(self.files)}

    @property
    def distinct_bytes(self) -> int:
        """Bytes of a copy."""
        return sum(file.size for file in self.distinct.values())


class WantedFiles(NamedTuple):
    """What is copied of a model repository.

    Attributes:
        repository: its path.
        model: the one folder, or file, of it that is read; "" if it reads all of it.
        files: pattern of the names that the server reads there; "" if it reads all.
        adapters: whether LoRA adapters in the model's folder belong to it: others come and go, and
            are read where they are.
    """

    repository: str
    model: str = ""
    files: str = ""
    adapters: bool = True

    def look(self) -> Tree:
        """Look at each of its files; raises OSError or NotCachedError if not all can be seen."""
        if self.model and (alone := Path(self.repository, self.model)).is_file():
            with _opened(alone) as opened:
                return Tree((), (_file(self.model, os.fstat(opened)),))
        folders = [self.model] if self.model else []
        files: list[File] = []
        for path, file in self._entries(self.model, ()):
            if file is None:
                folders.append(path)
            else:
                files.append(file)
            if len(folders) + len(files) > MOST_FILES:
                raise NotCachedError("files", f"{self.repository} has more than {MOST_FILES} files")
        if not files:
            raise NotCachedError("files", f"{self.repository} has no file that is read")
        return Tree(tuple(sorted(folders)), tuple(sorted(files)))

    def require_change_times(self, tree: Tree) -> None:
        """Raise NotCachedError if a file could be another one that looks the same.

        A file system without times of changes gives those of contents, which users set. Elsewhere
        both are the same of a file that was just written, and never a whole second.
        """
        kinds = _kinds()
        for file in tree.files:
            kind = kinds.get(file.device, "")
            has_none = kind.startswith("fuse") or kind in _TIMELESS
            is_whole = file.mtime_ns % _SECOND_NS == 0
            if file.ctime_ns == file.mtime_ns and (has_none or is_whole):
                raise NotCachedError(
                    "times",
                    f"{self.repository}/{file.path} has no time of its last change (ctime), by"
                    f" which another file in its place would be seen{kind and f': {kind}'}",
                )

    def key(self, tree: Tree) -> str:
        """Return the name of a copy of these files."""
        return hashlib.sha256(repr((*self, *tree)).encode()).hexdigest()[:32]

    def _entries(
        self, folder: str, above: tuple[tuple[int, int], ...]
    ) -> Iterator[tuple[str, File | None]]:
        """Yield all below a folder, None for folders; links are followed.

        ``above`` are the folders that it lies in.
        """
        place = Path(self.repository, folder)
        status = place.stat()
        here = status.st_dev, status.st_ino
        if here in above:
            raise NotCachedError("files", f"{place} is a link to a folder above it")
        with os.scandir(place) as scanned:
            entries = list(scanned)
        if above:
            if not self.adapters and any(entry.name == _ADAPTER for entry in entries):
                return
            yield folder, None
        for entry in entries:
            path = f"{folder}/{entry.name}" if folder else entry.name
            if entry.is_dir():
                if entry.name != _BYTECODE:
                    yield from self._entries(path, (*above, here))
            elif entry.is_file() and fnmatchcase(entry.name, self.files or "*"):
                with _opened(place / entry.name) as file:
                    yield path, _file(path, os.fstat(file))


def _file(path: str, status: os.stat_result) -> File:
    times_ns = status.st_mtime_ns, status.st_ctime_ns
    identity = status.st_dev, status.st_ino
    return File(path, status.st_size, *times_ns, *identity, stat.S_IMODE(status.st_mode))


@contextmanager
def _opened(path: Path, flags: int = os.O_RDONLY | os.O_NONBLOCK, mode: int = 0) -> Iterator[int]:
    """Open a file; nothing waits for the writer of a FIFO that has taken its place."""
    file = os.open(path, flags | os.O_CLOEXEC, mode)
    try:
        yield file
    finally:
        os.close(file)


@contextmanager
def _opened_folder(path: Path) -> Iterator[int]:
    try:
        folder = os.open(path, _FOLDER | os.O_NOFOLLOW)
    except NotADirectoryError:  # Of a link, too.
        raise NotCachedError("folder", f"{path} is no folder") from None
    try:
        yield folder
    finally:
        os.close(folder)


def _go_on() -> None:
    """Pause for no time."""


class Cache:
    """What one user's jobs keep on this node."""

    def __init__(self, folder: str, most_bytes: int, pause: Callable[[], object] = _go_on) -> None:
        """``most_bytes`` is how much that may be; ``pause`` is called before each chunk is read.

        It may wait: no lock is held then but that of the copy itself. Raises NotCachedError if
        another user could change the folder, or has taken its place.
        """
        self._most_bytes, self._pause = most_bytes, pause
        # A server gets the path without links: who may replace one leads it nowhere else.
        root = Path(os.path.realpath(folder))
        for above in root.parents:
            _require_sticky(above, above.stat())
        with _opened_folder(root) as opened:
            _require_sticky(root, os.fstat(opened))
        self._home = root / str(os.geteuid())
        with suppress(FileExistsError):
            self._home.mkdir(0o700)
        with _opened_folder(self._home) as home:
            _require_private(self._home, os.fstat(home))

    def path(self, name: str) -> Path:
        """Return where an entry is."""
        return self._home / name

    def require_memory(self, needed_bytes: int) -> None:
        """Raise NotCachedError if this cache is memory, and the job has too little for a copy.

        The job is charged for it until it ends; from then on nobody is, so the site keeps that
        memory out of what Slurm gives (SW-NODE-CACHE).
        """
        job_mib = os.environ.get("SLURM_MEM_PER_NODE", "")
        needed_mib = 2 * _mib(needed_bytes)
        is_in_memory = _kinds().get(self._home.stat().st_dev) in _IN_MEMORY
        if is_in_memory and job_mib.isdigit() and 0 < int(job_mib) < needed_mib:
            raise NotCachedError(
                "memory",
                f"{self._home} is memory, where a copy counts as this job's: that needs"
                f" memory_mib = {needed_mib}",
            )

    def held(self, key: str, tree: Tree, *, waits: bool = True) -> int | None:
        """Return the copy of these files, opened and locked so that it stays; None if none is here.

        One that somebody has changed is removed. It ``waits`` for a job that has locked it, and for
        what must be read if the node was down since, or takes it for gone.
        """
        try:
            entry = os.open(self.path(key), _FOLDER | os.O_NOFOLLOW)
        except FileNotFoundError:
            return None
        except NotADirectoryError:
            raise NotCachedError("folder", f"{self.path(key)} is no folder") from None
        is_held = False
        try:
            if waits:
                _lock(entry, fcntl.LOCK_SH, self.path(key))
            elif not _is_locked(entry, fcntl.LOCK_SH):
                return None
            if not _is_at(entry, self.path(key)):
                return None
            if not waits and _record(self.path(key)).get("boot") != _boot():
                return None
            if self._is_kept(key, tree):
                os.utime(entry)
                is_held = True
                return entry
        finally:
            if not is_held:
                os.close(entry)
        if not self._is_dropped(key):
            raise NotCachedError(
                "locked", f"{self.path(key)} was changed, and another job reads it"
            )
        return None

    def is_hit(self, key: str, tree: Tree) -> bool:
        """Whether a copy of these files is here."""
        entry = self.held(key, tree)
        if entry is None:
            return False
        self._clear()
        os.close(entry)
        return True

    def _is_kept(self, key: str, tree: Tree) -> bool:
        """Whether a copy is as it was made, and the disk has kept it if the node was down since."""
        entry, changed_ns = self.path(key), self._changed_ns(key, tree)
        record = _record(entry)
        if changed_ns is None or record.get("changed_ns") != changed_ns:
            return False
        boot = _boot()
        if record.get("boot") != boot:
            if record.get("checksums") != _checksums(entry / MODELS, tree, self._pause):
                return False
            _write_record(entry, {**record, "boot": boot})
        return True

    def _changed_ns(self, key: str, tree: Tree) -> Mapping[str, int] | None:
        """Return when each file there was changed last, by path.

        None if not all that lies there has the names, sizes and times with which it was copied; no
        copy has a link in it.
        """
        folders, files, changed_ns = [], [], {}
        with suppress(FileNotFoundError):
            for path, status in _entries_in(self.path(key) / MODELS):
                if stat.S_ISDIR(status.st_mode):
                    folders.append(path)
                elif stat.S_ISREG(status.st_mode) and status.st_uid == os.geteuid():
                    files.append((path, status.st_size, status.st_mtime_ns))
                    changed_ns[path] = status.st_ctime_ns
                else:
                    return None
        copied = [(file.path, file.size, file.mtime_ns) for file in tree.files]
        is_copy = (sorted(folders), sorted(files)) == (list(tree.folders), copied)
        return changed_ns if is_copy else None

    def is_copied(self, key: str, tree: Tree, wanted: WantedFiles, lacking: int = 0) -> bool:
        """Whether the files were copied; False if another job may have done it meanwhile.

        As many bytes as were ``lacking`` are made room for, too. Raises SourceChangedError, and
        FullError.
        """
        part = self.path(key + _PART)
        folder = self._begun(part)
        if folder is None:
            return False
        try:
            if self.path(key).exists():
                return False
            self._fill(part, tree, wanted, lacking)
            if wanted.look() != tree:
                raise SourceChangedError
            changed_ns = self._changed_ns(part.name, tree)
            if changed_ns is None:
                raise NotCachedError("folder", f"{self._home} keeps no files as they were copied")
            _write_record(
                part,
                {
                    "boot": _boot(),
                    "changed_ns": changed_ns,
                    "checksums": _checksums(part / MODELS, tree, self._pause),
                },
            )
            part.rename(self.path(key))
            _sync(self._home)
            return True
        finally:
            if _is_at(folder, part):
                _remove_tree(part)
            os.close(folder)

    def _fill(self, part: Path, tree: Tree, wanted: WantedFiles, lacking: int) -> None:
        try:
            self._take_room(part, tree, lacking)
            firsts = tree.distinct
            for file in firsts.values():
                source = Path(wanted.repository, file.path)
                _copy(source, part / MODELS / file.path, file, self._pause)
            for file in tree.files:
                first = firsts[file.content]
                if file != first:
                    os.link(part / MODELS / first.path, part / MODELS / file.path)
            for name in (*tree.folders, ""):
                _sync(part / MODELS / name)
        except OSError as error:
            if error.errno not in _FULL:
                raise
            unwritten = tree.distinct_bytes - _bytes_in(part)[1]
            raise FullError(f"{self._home}: {error.strerror}", unwritten) from None

    def _begun(self, part: Path) -> int | None:
        """Return a folder for a copy, empty and locked.

        None once another job that had it locked has ended: two that start at once copy once. That
        is awaited by a shared lock: the folder may be a copy by then, which others have locked.
        """
        with suppress(FileExistsError):
            part.mkdir(0o700)
        try:
            folder = os.open(part, _FOLDER | os.O_NOFOLLOW)
        except FileNotFoundError:
            return None
        is_begun = False
        try:
            fcntl.flock(folder, fcntl.LOCK_EX | fcntl.LOCK_NB)
            is_begun = _is_at(folder, part)
        except BlockingIOError:
            sys.stderr.write("weights: waiting for another job's copy of this model\n")
            sys.stderr.flush()
            _lock(folder, fcntl.LOCK_SH, part)
        finally:
            if not is_begun:
                os.close(folder)
        if is_begun:
            for left in part.iterdir():
                _remove_tree(left)
        return folder if is_begun else None

    def _take_room(self, part: Path, tree: Tree, lacking: int) -> None:
        """Make all folders, and empty files at their full size, once there is room for them.

        So other jobs see how much is taken before it is written.
        """
        with _opened_folder(self._home) as home:
            _lock(home, fcntl.LOCK_EX, self._home)
            self._clear(part.name)
            self._make_room(tree.distinct_bytes, lacking)
            for name in ("", *tree.folders):
                (part / MODELS / name).mkdir(0o700)
            for file in tree.distinct.values():
                with _opened(part / MODELS / file.path, _NEW, file.copied_mode) as target:
                    os.ftruncate(target, file.size)

    def _clear(self, own_part: str = "") -> None:
        """Remove what killed jobs have left, and what no start has used for long."""
        for path in self._home.iterdir():
            if _GONE in path.name:
                _remove_tree(path)
            elif path.name != own_part and (path.name.endswith(_PART) or _is_unused(path)):
                self._is_dropped(path.name)

    def _make_room(self, needed_bytes: int, lacking: int) -> None:
        """Remove what was used least recently, as much as must be.

        That is ``lacking`` bytes at least: the disk was full, whatever it says. Raises
        NotCachedError, and removes nothing, if all that no job reads is not enough.
        """
        if needed_bytes > self._most_bytes:
            raise NotCachedError(
                "limit", f"{_mib(needed_bytes)} MiB are more than node_cache_gib allows"
            )
        entries = self._entries()
        names = [path.name for path in self._home.iterdir() if path.name.endswith(_PART)]
        parts = [_bytes_in(self.path(name)) for name in names]
        taken = sum(size for _, size in entries) + sum(size for size, _ in parts)
        disk = os.statvfs(self._home)
        # What other jobs are about to write is no longer free.
        free = int((disk.f_bavail - _FREE_SHARE * disk.f_blocks) * disk.f_frsize)
        free -= sum(size - written for size, written in parts)
        missing = max(lacking, needed_bytes - min(free, self._most_bytes - taken))
        locked: dict[str, int] = {}
        try:
            for name, size in entries:
                if missing > 0 and (entry := self._locked(name)) is not None:
                    locked[name] = entry
                    missing -= size
            if missing > 0:
                raise NotCachedError(
                    "room", f"{self._home} has no room for {_mib(needed_bytes)} MiB"
                )
            for name in locked:
                self._remove(name)
        finally:
            for entry in locked.values():
                os.close(entry)

    def _entries(self) -> Sequence[tuple[str, int]]:
        """Return whole copies and their bytes, the least recently used first."""
        entries = []
        for path in self._home.iterdir():
            with suppress(FileNotFoundError):
                if _KEY.fullmatch(path.name):
                    entries.append((path.lstat().st_mtime_ns, path.name, _bytes_in(path)[0]))
        return [(name, size) for _, name, size in sorted(entries)]

    def _is_dropped(self, name: str) -> bool:
        """Whether an entry was removed: no job has it locked."""
        entry = self._locked(name)
        if entry is None:
            return False
        try:
            self._remove(name)
        finally:
            os.close(entry)
        return True

    def _locked(self, name: str) -> int | None:
        """Return the entry, opened and locked; None if a job has it locked, or it has gone."""
        try:
            entry = os.open(self.path(name), _FOLDER | os.O_NOFOLLOW)
        except OSError:
            return None
        if _is_locked(entry, fcntl.LOCK_EX) and _is_at(entry, self.path(name)):
            return entry
        os.close(entry)
        return None

    def _remove(self, name: str) -> None:
        # Renamed first: what is left of a copy must not have its name.
        gone = self.path(f"{name}{_GONE}{os.getpid()}.{time.monotonic_ns()}")
        self.path(name).rename(gone)
        _remove_tree(gone)


def _require_sticky(folder: Path, status: os.stat_result) -> None:
    """Raise NotCachedError if another user could put something else in the place of what is here.

    In a folder that others write to, as /tmp, nobody moves what is root's or this user's.
    """
    mode = stat.S_IMODE(status.st_mode)
    if status.st_uid not in (0, os.geteuid()):
        raise NotCachedError("folder", f"{folder} is user {status.st_uid}'s, not root's")
    if mode & _OTHERS_WRITE and not mode & stat.S_ISVTX:
        raise NotCachedError(
            "folder", f"{folder} has mode {mode:04o}: others can replace what is in it"
        )


def _require_private(home: Path, status: os.stat_result) -> None:
    mode = stat.S_IMODE(status.st_mode)
    if status.st_uid != os.geteuid():
        raise NotCachedError("folder", f"{home} is user {status.st_uid}'s: only root can remove it")
    if mode & _OTHERS:
        raise NotCachedError(
            "folder", f"{home} has mode {mode:04o}, not 0700: others may have changed it"
        )


def _is_at(folder: int, path: Path) -> bool:
    """Whether the folder that was opened is still there, by that name."""
    with suppress(FileNotFoundError):
        return os.path.samestat(os.fstat(folder), path.lstat())
    return False


def _remove_tree(path: Path) -> None:
    """Remove a file or folder of the cache; another job of this user may do so, too."""
    shutil.rmtree(path, ignore_errors=True)
    with suppress(OSError):
        path.unlink()


def _entries_in(top: Path, folder: str = "") -> Iterator[tuple[str, os.stat_result]]:
    """Yield all that lies below a folder of the cache; no link is followed."""
    with os.scandir(top / folder) as entries:
        for entry in entries:
            path = f"{folder}/{entry.name}" if folder else entry.name
            is_folder = entry.is_dir(follow_symlinks=False)
            if is_folder and entry.name == _BYTECODE:
                continue
            yield path, entry.stat(follow_symlinks=False)
            if is_folder:
                yield from _entries_in(top, path)


def _bytes_in(folder: Path) -> tuple[int, int]:
    """Return bytes of the files in a folder of the cache, and how many of them are written."""
    sizes: dict[int, tuple[int, int]] = {}
    with suppress(FileNotFoundError):
        for _, status in _entries_in(folder):
            if stat.S_ISREG(status.st_mode):
                written = min(status.st_size, status.st_blocks * 512)
                sizes[status.st_ino] = status.st_size, written
    return sum(size for size, _ in sizes.values()), sum(written for _, written in sizes.values())


def _kinds() -> dict[int, str]:
    """Return the kinds of the file systems that are mounted, by device, as the kernel has them."""
    kinds = {}
    with Path("/proc/self/mountinfo").open(encoding="utf-8", errors="replace") as mounts:
        for mount in mounts:
            place, _, kind = mount.partition(" - ")
            major, _, minor = place.split()[2].partition(":")
            kinds[os.makedev(int(major), int(minor))] = kind.split()[0]
    return kinds


def _is_unused(path: Path) -> bool:
    with suppress(FileNotFoundError):
        return bool(_KEY.fullmatch(path.name)) and time.time() - path.lstat().st_mtime > _UNUSED_S
    return False


def _is_locked(folder: int, lock: int) -> bool:
    """Whether a folder could be locked at once."""
    with suppress(BlockingIOError):
        fcntl.flock(folder, lock | fcntl.LOCK_NB)
        return True
    return False


def _lock(folder: int, kind: int, path: Path) -> None:
    """Lock a folder that was opened at ``path``.

    Raises NotCachedError if it stays locked, and less is written there than a copy writes.
    """
    until_s, written = 0.0, -_LEAST_BYTES
    while not _is_locked(folder, kind):
        now_s = time.monotonic()
        if now_s >= until_s:
            before, written = written, _bytes_in(path)[1]
            if written < before + _LEAST_BYTES:
                raise NotCachedError("locked", f"{path} is locked by a job that gets nowhere")
            until_s = now_s + _WAIT_S
        time.sleep(_POLL_S)


def _copy(source_path: Path, target_path: Path, file: File, pause: Callable[[], object]) -> None:
    """Copy a file; raises SourceChangedError if it is not the one that was seen."""
    try:
        with _opened(source_path) as source:
            if _file(file.path, os.fstat(source)) != file:
                raise SourceChangedError
            _send(source, target_path, file, pause)
            # The server reads the copy: this one need not stay in memory.
            os.posix_fadvise(source, 0, 0, os.POSIX_FADV_DONTNEED)
    except FileNotFoundError:
        raise SourceChangedError from None


def _send(source: int, target_path: Path, file: File, pause: Callable[[], object]) -> None:
    with _opened(target_path, os.O_WRONLY | os.O_NOFOLLOW) as target:
        left = file.size
        while left:
            pause()
            sent = os.sendfile(target, source, None, min(left, _CHUNK_BYTES))
            if not sent:
                raise SourceChangedError
            left -= sent
        os.utime(target, ns=(file.mtime_ns, file.mtime_ns))
        os.fsync(target)


def _checksums(models: Path, tree: Tree, pause: Callable[[], object]) -> Mapping[str, str]:
    """Read a copy's files; return the checksum of each, by path. The job's CPUs share the work."""
    with ThreadPoolExecutor(min(_READERS, len(os.sched_getaffinity(0)))) as pool:
        return {
            file.path: _checksum(models / file.path, pool, pause) for file in tree.distinct.values()
        }


def _checksum(path: Path, pool: ThreadPoolExecutor, pause: Callable[[], object]) -> str:
    """Return the digest of the CRCs of a file's parts: what a disk has lost changes them."""
    with _opened(path, os.O_RDONLY | os.O_NOFOLLOW) as file:

        def crc_at(offset: int) -> bytes:
            pause()
            return zlib.crc32(os.pread(file, _CHUNK_BYTES, offset)).to_bytes(4, "big")

        parts = pool.map(crc_at, range(0, os.fstat(file).st_size, _CHUNK_BYTES))
        return hashlib.sha256(b"".join(parts)).hexdigest()


def _boot() -> str:
    """Return what the node has been called since it is up."""
    return BOOT.read_text(encoding="ascii")


def _record(entry: Path) -> Mapping[str, object]:
    """Read what is recorded of a copy; nothing if there is none, or only a part of it."""
    with suppress(FileNotFoundError, ValueError):
        record = json.loads((entry / RECORD).read_text(encoding="ascii"))
        if isinstance(record, dict):
            return record
    return {}


def _write_record(entry: Path, record: Mapping[str, object]) -> None:
    """Write it whole or not at all, whatever happens to this job or the node."""
    new = entry / f"{RECORD}.{os.getpid()}.{time.monotonic_ns()}"
    opened = os.open(new, _NEW | os.O_CLOEXEC, stat.S_IRUSR | stat.S_IWUSR)
    with os.fdopen(opened, "w", encoding="ascii") as file:
        json.dump(record, file)
        file.flush()
        os.fsync(file)
    new.replace(entry / RECORD)
    _sync(entry)


def _sync(folder: Path) -> None:
    with _opened_folder(folder) as opened:
        os.fsync(opened)


def _mib(count: int) -> int:
    """Bytes in MiB, rounded up."""
    return -(-count >> 20)


def brought(
    cache_folder: str,
    most_bytes: int,
    wanted: WantedFiles,
    beside_bytes: int = 0,
    pause: Callable[[], object] = _go_on,
) -> tuple[str, int, str]:
    """Return ``hit``, ``copied`` or ``source``; bytes; the entry, or ``WORD: REASON`` for none.

    ``beside_bytes`` are what this job has copied before: in memory they count as its own, too.
    ``pause`` is called before each chunk of a file is read.
    """
    size = lacking = 0
    try:
        cache = Cache(cache_folder, most_bytes, pause)
        tries = _TRIES
        while tries:
            tree = wanted.look()
            size, key = tree.distinct_bytes, wanted.key(tree)
            wanted.require_change_times(tree)
            if cache.is_hit(key, tree):
                return "hit", size, str(cache.path(key))
            cache.require_memory(size + beside_bytes)
            try:
                if cache.is_copied(key, tree, wanted, lacking):
                    return "copied", size, str(cache.path(key))
            except SourceChangedError:
                tries -= 1
            except FullError as full:
                if lacking:
                    return "source", size, f"room: {full}"
                lacking = full.lacking
    except NotCachedError as reason:
        return "source", size, str(reason)
    except OSError as error:
        return "source", size, f"failed: {error.filename or cache_folder}: {error.strerror}"
    return "source", size, f"changes: {wanted.repository} changes while it is copied"


def _read_ahead(models: Path, size: int) -> None:
    """Have the kernel read a copy into memory, in a process of its own, while the server starts.

    It is left to the server if ``size``, with what this job has copied before, would take more than
    half of the job's memory: what was read first would be gone again when the server comes to it.
    """
    job_mib = os.environ.get("SLURM_MEM_PER_NODE", "")
    is_limited = job_mib.isdigit() and int(job_mib) > 0
    node_mib = _mib(os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE"))
    if 2 * _mib(size) > (int(job_mib) if is_limited else node_mib):
        return
    try:
        is_parent = os.fork() > 0
    except OSError:  # There may be no more processes: the server reads for itself.
        return
    if is_parent:
        return
    try:
        # Who reads what this script prints does not wait for this process.
        with _opened(Path(os.devnull), os.O_RDWR) as nothing:
            for number in (0, 1, 2):
                os.dup2(nothing, number)
        for path, status in sorted(_entries_in(models)):
            if stat.S_ISREG(status.st_mode):
                with _opened(models / path, os.O_RDONLY | os.O_NOFOLLOW) as file:
                    for offset in range(0, status.st_size, _AHEAD_BYTES):
                        os.posix_fadvise(file, offset, _AHEAD_BYTES, os.POSIX_FADV_WILLNEED)
    finally:
        os._exit(0)


def told_line(outcome: str, started_s: float, size: int, where: str) -> str:
    """Return the line that is printed; ``started_s`` is when it began, by ``time.monotonic``."""
    # A name in the repository may hold anything, and the batch script reads one line.
    where = "".join(letter if letter.isprintable() else "?" for letter in where)
    return f"{outcome} {time.monotonic() - started_s:.3f} {size} {where}\n"


def _wait_for_input() -> None:
    """Wait until standard input has something to read, which stays there, or has ended."""
    select.select([0], [], [])


def _end(number: int, _frame: object) -> NoReturn:
    """End; what was copied so far is removed on the way out."""
    signal.signal(number, signal.SIG_IGN)
    sys.exit(128 + number)


def main(words: Sequence[str]) -> None:
    """Bring the files that the words name, and say how."""
    parser = argparse.ArgumentParser()
    parser.add_argument("cache")
    parser.add_argument("most_bytes", type=int)
    parser.add_argument("repository")
    parser.add_argument("--model", default="")
    parser.add_argument("--files", default="")
    parser.add_argument("--no-adapters", dest="adapters", action="store_false")
    parser.add_argument("--beside", type=int, default=0)
    parser.add_argument("--pauses", action="store_true")
    told = parser.parse_args(words)
    signal.signal(signal.SIGTERM, _end)
    started_s = time.monotonic()
    wanted = WantedFiles(told.repository, told.model, told.files, told.adapters)
    pause = _wait_for_input if told.pauses else _go_on
    outcome, size, where = brought(told.cache, told.most_bytes, wanted, told.beside, pause)
    sys.stdout.write(told_line(outcome, started_s, size, where))
    sys.stdout.flush()
    if outcome == "hit":
        _read_ahead(Path(where) / MODELS, size + told.beside)


if __name__ == "__main__":
    main(sys.argv[1:])
