"""Tests what lets a pool's server load models from its node: nothing torn or old, no waits."""

import ast
import fcntl
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

import pytest
from waiting import PATIENCE_S, until

from slicewise.cluster.language.starts import FALLBACK_TEXTS
from slicewise.launcher.rules.probing.pool_loads import MOST_BYTES, load_line
from slicewise.launcher.scripts import weights

SCRIPTS = Path(weights.__file__).parent
MUCH = 1 << 40
OWN, OTHER = "own", "other"


class Node:
    """A node with a repository on a shared disk, a cache, and the server of a replica."""

    def __init__(self, place: Path) -> None:
        self.repository, self.cache, self.private = (place / name for name in ("r", "c", "p"))
        self.cache.mkdir()
        self.cache.chmod(0o1777)
        self.readonly = self.private / "readonly"
        self.readonly.mkdir(parents=True)
        for name in ("weights.py", "pool_weights.py"):
            shutil.copy(SCRIPTS / name, self.readonly)
        for model in (OWN, OTHER):
            self.write(model, f"weights of {model}")
        self.log = place / "log"
        self._kept: list[subprocess.Popen[bytes]] = []
        self._server: socket.socket | None = None

    def write(self, model: str, content: str) -> None:
        (self.repository / model / "1").mkdir(parents=True, exist_ok=True)
        (self.repository / model / "1" / "w").write_text(content)
        (self.repository / model / "config.pbtxt").write_text("backend")

    def start(self, most: int = MUCH) -> subprocess.Popen[bytes]:
        """Start it as a replica's script does; wait until the server may start."""
        (self.readonly / "weights").unlink(missing_ok=True)
        with self.log.open("ab") as log:
            words = ("http", "/ready", "0", str(self.cache), str(most), str(self.repository), OWN)
            program = str(self.readonly / "pool_weights.py")
            kept = subprocess.Popen(
                (sys.executable, program, str(self.private), "chat.7.3", *words),
                stdout=log,
                stderr=log,
                start_new_session=True,
            )
        self._kept.append(kept)
        until((self.readonly / "weights").exists)
        return kept

    def told(self) -> list[str]:
        return (self.readonly / "weights").read_text().split(maxsplit=4)

    def serve(self) -> None:
        """Let the server be fit: it has loaded its own model."""
        self._server = socket.socket(socket.AF_UNIX)
        self._server.bind(str(self.private / "http"))
        self._server.listen()
        threading.Thread(target=self._answer, daemon=True).start()

    def _answer(self) -> None:
        assert self._server is not None
        with suppress(OSError):
            while True:
                client, _ = self._server.accept()
                with client:
                    client.recv(1 << 16)
                    client.sendall(b"HTTP/1.1 200 OK\r\n\r\n")

    @contextmanager
    def loading(self, model: str, *kept: str) -> Iterator[str]:
        """From where it is loaded, while it is, beside those that the server has."""
        with socket.socket(socket.AF_UNIX) as client:
            client.settimeout(PATIENCE_S)
            until(lambda: client.connect_ex(str(self.readonly / "weights.sock")) == 0)
            answers = client.makefile("rb")
            greeting = answers.readline()
            assert 0 < len(greeting) < MOST_BYTES
            client.sendall(load_line(model, kept))
            yield answers.readline().decode().strip()
            answers.close()

    def seen(self, model: str) -> Path:
        """Where the server finds the model's weights."""
        return (self.readonly / "models" / model / "1" / "w").resolve()

    def is_home(self, model: str) -> bool:
        return self.seen(model) == self.repository / model / "1" / "w"

    def copies(self) -> set[Path]:
        """Whole copies, by their weights."""
        pattern = f"{os.geteuid()}/{'[0-9a-f]' * 32}/models/*/1/w"
        return set(self.cache.glob(pattern))

    def parts(self) -> set[Path]:
        """Copies that are being made, by their weights, which have their full size."""
        return set(self.cache.glob(f"{os.geteuid()}/*.part/models/*/1/w"))

    @contextmanager
    def paused(self) -> Iterator[Path]:
        """The beginning of a copy; a load goes on that began before the copy could take room."""
        with ExitStack() as stack:
            with self.folder_locked():
                self.serve()
                until(lambda: any(self.cache.glob(f"{os.geteuid()}/*.part")))
                assert stack.enter_context(self.loading(OTHER, OWN)) == "source"
            yield next(iter(until(self.parts)))

    @contextmanager
    def folder_locked(self) -> Iterator[None]:
        """As by a job of this user that takes room there."""
        folder = os.open(self.cache / str(os.geteuid()), os.O_RDONLY)
        try:
            until(lambda: is_locked_now(folder))
            yield
        finally:
            os.close(folder)

    def copied(self, model: str, times: int = 1) -> Path:
        """Wait until it was copied so often; return its copy, the newest."""
        until(lambda: self.brought().count((model, "copied")) == times)
        copies = [copy for copy in self.copies() if copy.parts[-3] == model]
        return max(copies, key=lambda copy: copy.parents[3].stat().st_mtime_ns)

    def brought(self) -> list[tuple[str, str]]:
        """Models, and how they came, by the log."""
        lines = [line.split() for line in self.log.read_text().splitlines() if "weights=" in line]
        return [(model[:-1], how.removeprefix("weights=")) for _, _, model, how, *_ in lines]

    def close(self) -> None:
        for kept in self._kept:
            with suppress(ProcessLookupError):
                os.killpg(kept.pid, signal.SIGKILL)
            kept.wait()
        if self._server is not None:
            self._server.close()


@pytest.fixture
def node() -> Iterator[Node]:
    # A socket's path may have 107 bytes.
    place = Path(tempfile.mkdtemp(prefix="slicewise-pool-"))
    place.chmod(0o755)
    found = Node(place)
    yield found
    found.close()
    shutil.rmtree(place)


def is_locked_now(folder: int) -> bool:
    """Whether nobody else had it locked."""
    with suppress(BlockingIOError):
        fcntl.flock(folder, fcntl.LOCK_EX | fcntl.LOCK_NB)
        return True
    return False


def is_locked(copy: Path) -> bool:
    """Whether it would not make room for others."""
    entry = os.open(copy.parents[3], os.O_RDONLY)
    try:
        return not is_locked_now(entry)
    finally:
        os.close(entry)


def test_the_first_start_reads_the_repository_and_the_next_one_the_copy(node: Node):
    node.start()
    outcome, _, size, home, why = node.told()
    assert (outcome, home) == ("source", f"{node.cache}/{os.geteuid()}")
    assert why.partition(":")[0] in FALLBACK_TEXTS
    assert int(size) == len("weights of own") + len("backend")
    assert node.is_home(OWN)
    assert not node.copies()
    node.serve()
    copy = node.copied(OWN)
    assert copy.read_text() == "weights of own"
    assert node.is_home(OWN)
    node.close()
    (node.private / "http").unlink()
    node.start()
    assert (node.told()[0], node.told()[4]) == ("hit", f"{copy.parents[1]}\n")
    assert node.seen(OWN) == copy
    assert is_locked(copy)
    # Once it is loaded, nothing leads to the copy any more; it stays: the server may map it.
    node.serve()
    until(lambda: node.is_home(OWN))
    assert is_locked(copy)
    assert node.brought() == [(OWN, "source"), (OWN, "copied"), (OWN, "hit")]


def test_what_was_loaded_from_the_repository_is_copied_once_no_load_goes_on(node: Node):
    node.start()
    node.serve()
    node.copied(OWN)
    with node.loading(OTHER, OWN) as outcome:
        assert (outcome, node.is_home(OTHER)) == ("source", True)
        with node.loading(OWN, OWN):
            pass
        assert len(node.copies()) == 1
    copy = node.copied(OTHER)
    assert not is_locked(copy)
    with node.loading(OTHER, OWN) as outcome:
        assert (outcome, node.seen(OTHER)) == ("hit", copy)
        # Nothing changes under a load, also if another launcher asks for it, too.
        with node.loading(OTHER, OWN) as again:
            assert again == "hit"
        assert node.seen(OTHER) == copy
    until(lambda: node.is_home(OTHER))
    assert is_locked(copy)


def test_a_copy_goes_no_further_while_a_model_is_loaded_but_keeps_nobody_waiting(node: Node):
    node.start()
    with node.paused() as part:
        # Other starts of this user may take room, and remove what they need not.
        with node.folder_locked():
            pass
        with node.loading(OTHER, OWN):
            pass
        assert (part.stat().st_blocks, node.copies()) == (0, set())
    assert node.copied(OWN).read_text() == "weights of own"


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM])
def test_a_copy_that_is_paused_outlives_who_has_paused_it_unless_told_to_end(
    node: Node, number: signal.Signals
):
    kept = node.start()
    with node.paused():
        kept.send_signal(number)
        if number == signal.SIGKILL:
            kept.wait()
            assert until(node.copies).pop().read_text() == "weights of own"
        until(lambda: not node.parts())
        assert len(node.copies()) == (number == signal.SIGKILL)


def test_a_copy_stays_as_long_as_the_server_has_the_model(node: Node):
    node.write("third", "weights of third")
    node.start()
    node.serve()
    for model in (OTHER, "third"):
        with node.loading(model, OWN):
            pass
        node.copied(model)
    with node.loading(OTHER, OWN) as outcome:
        assert outcome == "hit"
    with node.loading("third", OWN, OTHER):
        assert is_locked(node.copied(OTHER))
    with node.loading(OWN, OWN, "third"):
        assert not is_locked(node.copied(OTHER))
        assert is_locked(node.copied("third"))


def test_a_copy_of_files_that_have_changed_is_not_loaded(node: Node):
    node.start()
    node.serve()
    with node.loading(OTHER, OWN):
        pass
    old = node.copied(OTHER)
    node.write(OTHER, "weights of OTHER")
    with node.loading(OTHER, OWN) as outcome:
        assert (outcome, node.seen(OTHER).read_text()) == ("source", "weights of OTHER")
    copy = node.copied(OTHER, times=2)
    with node.loading(OTHER, OWN) as outcome:
        assert (outcome, node.seen(OTHER)) == ("hit", copy)
    assert (old.read_text(), copy.read_text()) == ("weights of other", "weights of OTHER")


def test_a_copy_that_was_changed_is_not_loaded(node: Node):
    node.start()
    node.serve()
    with node.loading(OTHER, OWN):
        pass
    node.copied(OTHER).write_text("WEIGHTS OF OTHER")
    with node.loading(OTHER, OWN) as outcome:
        assert (outcome, node.is_home(OTHER)) == ("source", True)


def test_models_that_come_and_go_do_so_for_the_server(node: Node):
    node.start()
    node.serve()
    (node.repository / "README").touch()
    node.write("later", "weights of later")
    shutil.rmtree(node.repository / OTHER)
    with node.loading("later", OWN) as outcome:
        assert (outcome, node.is_home("later")) == ("source", True)
    # A model whose files have gone: what leads nowhere would keep Triton from naming any model.
    assert {path.name for path in (node.readonly / "models").iterdir()} == {OWN, "later"}
    with node.loading(OTHER, OWN) as outcome:
        assert outcome == "source"
    assert node.brought()[-1] == (OTHER, "source")


def test_a_link_in_the_place_of_a_model_s_folder_is_not_followed(node: Node, tmp_path: Path):
    """A server without a container can put one there."""
    (node.readonly / "models").mkdir()
    (node.readonly / "models" / OTHER).symlink_to(tmp_path)
    node.start()
    assert node.told()[0] == "source"
    assert list(tmp_path.iterdir()) == []


def test_whoever_ends_it_within_a_load_leaves_nothing_to_be_loaded_unseen(node: Node):
    kept = node.start()
    node.serve()
    with node.loading(OTHER, OWN):
        pass
    copy = node.copied(OTHER)
    with node.loading(OTHER, OWN) as outcome:
        assert outcome == "hit"
        os.killpg(kept.pid, signal.SIGKILL)
    kept.wait()
    assert node.seen(OTHER) == copy
    node.start()
    assert node.is_home(OTHER)
    with node.loading(OTHER, OWN) as outcome:
        assert outcome == "hit"


def test_told_to_end_it_copies_no_more_and_keeps_what_the_server_has(node: Node):
    kept = node.start()
    node.serve()
    own = node.copied(OWN)
    with node.loading(OWN, OWN) as outcome:
        assert outcome == "hit"
    os.killpg(kept.pid, signal.SIGTERM)
    with node.loading(OTHER, OWN) as outcome:
        assert outcome == "source"
    with node.loading(OTHER, OWN) as outcome:
        assert outcome == "source"
    assert node.copies() == {own}
    assert is_locked(own)


def test_what_does_not_fit_is_read_from_the_repository(node: Node):
    node.write(OTHER, "w" * 2000)
    node.start(most=1000)
    node.serve()
    node.copied(OWN)
    with node.loading(OTHER, OWN):
        pass
    until(lambda: "more than node_cache_gib allows" in node.log.read_text())
    with node.loading(OTHER, OWN) as outcome:
        assert (outcome, node.is_home(OTHER)) == ("source", True)


def test_copies_in_memory_count_together_as_the_jobs(
    node: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    shutil.rmtree(node.cache)
    node.cache = Path(tempfile.mkdtemp(prefix="slicewise-pool-", dir="/dev/shm"))
    node.cache.chmod(0o1777)
    monkeypatch.setenv("SLURM_MEM_PER_NODE", "3")
    try:
        for model in (OWN, OTHER):
            node.write(model, "w" * (1 << 20) + "w")
        (node.repository / OWN / "1" / "w").write_text("w" * (1 << 19))
        node.start()
        node.serve()
        node.copied(OWN)
        with node.loading(OTHER, OWN):
            pass
        until(lambda: "that needs memory_mib = 4" in node.log.read_text())
    finally:
        node.close()
        shutil.rmtree(node.cache)


@pytest.mark.parametrize("mode", [0o777, None])
def test_where_nothing_can_be_kept_the_server_gets_the_repository_itself(
    node: Node, mode: int | None
):
    if mode is None:
        node.cache.rmdir()
    else:
        node.cache.chmod(mode)
    assert node.start().wait(PATIENCE_S) == 0
    outcome, *_, home, why = node.told()
    assert (outcome, home) == ("source", "-")
    assert why.partition(":")[0] in FALLBACK_TEXTS
    assert str(node.cache) in why


def test_what_is_no_load_is_sent_away(node: Node):
    node.start()
    for line in (b"\n", b"../other own\n", b"\xff\n"):
        with socket.socket(socket.AF_UNIX) as client:
            client.settimeout(PATIENCE_S)
            until(lambda to=client: to.connect_ex(str(node.readonly / "weights.sock")) == 0)
            client.sendall(line)
            answers = client.makefile("rb")
            assert answers.readline()
            assert answers.read() == b""


def test_its_syntax_is_that_of_python_3_8():
    text = (SCRIPTS / "pool_weights.py").read_text()
    ast.parse(text, feature_version=(3, 8))
