"""The only module that talks to HAProxy: Runtime API on unix sockets, check of a configuration."""

import asyncio
import re
import ssl
from asyncio.subprocess import PIPE
from collections.abc import (
    Awaitable,
    Callable,
    Collection,
    Iterable,
    Iterator,
    Mapping,
    Sequence,
)
from contextlib import suppress
from dataclasses import replace
from functools import partial
from itertools import groupby
from pathlib import Path
from resource import RLIM_INFINITY, RLIMIT_NOFILE, getrlimit
from typing import Self, TypeVar

from slicewise.cluster.language.codes import Code
from slicewise.cluster.language.errors import (
    InvalidInputError,
    OutsideError,
    SlicewiseError,
    UnreachableError,
)
from slicewise.cluster.rpc.key_messages import GrantsAnswer
from slicewise.cluster.runtime.wall_clock import wall_s
from slicewise.cluster.settings.gateway import GatewaySettings
from slicewise.launcher.gateway import identity
from slicewise.launcher.gateway.files import replace_file
from slicewise.launcher.gateway.ring import RingReader
from slicewise.launcher.gateway.runtime_api import (
    MOST_FILES,
    TOLD_KEY,
    WHO,
    LastLook,
    Maps,
    commands,
    entry_commands,
    files_needed,
    glance_questions,
    idle_questions,
    key_entry,
    limit_entries,
    map_text,
    number_of,
    old_workers,
    parse,
    parse_glance,
    parse_map,
    process_of,
    questions,
    quiet_commands,
    servers,
    without_digests,
)
from slicewise.launcher.gateway.streams import (
    SHOW_SESSIONS,
    SHOW_STREAMS,
    end_commands,
    key_ages_s,
    without_key,
)
from slicewise.launcher.rules.gateway.allowances import TakenTokens, expired, parse_taken
from slicewise.launcher.rules.gateway.fair_orders import SHOW_FAIR, positions_of
from slicewise.launcher.rules.gateway.fair_queue import Position
from slicewise.launcher.rules.gateway.routing import GatewayChange
from slicewise.launcher.rules.gateway.timings import SHOW_TIMINGS, Timings, timings_of
from slicewise.launcher.rules.gateway.types import Gateway, with_replaced

DEADLINE_S = 2.0
_KNOWN_WORDS = re.compile(r"expects (?:'[^']*',? (?:or )?){5,}but")
"""All words that HAProxy knows in that place, of which there may be 60."""
_SERVICES_PER_S = 2000
"""Services for which one more second is allowed to a look at everything."""
REPLACED_DEADLINE_S = 0.5
"""Seconds that all processes that a reload has replaced may take together."""
LATEST_S = 30.0
"""Seconds that the launcher hears an answer for which it no longer waits."""
_AT_END_S = 5.0
"""Seconds that a program hears such an answer before it ends: systemd kills it after 10 s."""
_READ_LIMIT = 64 * 1024 * 1024
_AT_ONCE = 64
"""Most commands in one line."""
_LINE_BYTES = 15 * 1024
"""Bytes of one line at most: it must fit into HAProxy's buffer (16 KiB). Where a glance's questions
have more, everything is asked for."""
_QUIET = (
    # The server already has the address (before HAProxy 3.0, and since), or it was changed.
    *("no need to change", "nothing changed", "changed from"),
    *("transaction created", "transaction updated", "Committing ", "Success!"),
)
"""Parts of answers that mean success: ``set server addr`` and changes of certificates answer in
words also when all is well."""
_Found = TypeVar("_Found")
_OPENSSL_CONF = re.compile(r"OPENSSL_CONF=(.+)")
_OPENSSL_OWN = Path(ssl.get_default_verify_paths().openssl_capath).with_name("openssl.cnf")
"""The file that OpenSSL reads if no other file is named."""
_GROUPS = re.compile(r"^\s*Groups\s*=", re.MULTILINE)
_OTHER_TRANSACTION = re.compile(r"ongoing transaction is about '([^']+)'")
"""What HAProxy answers if a launcher was killed between setting a certificate and its commit."""


class HaproxyRuntime:
    """Reads and changes each engine's group of backends (``triton1`` ...) at run time.

    Every call raises UnreachableError (SW-GATEWAY-DOWN), or OutsideError (SW-GATEWAY-FAILED) with
    HAProxy's own message. Used with ``async with``, it hears a late answer before the loop ends.
    """

    def __init__(self, settings: GatewaySettings) -> None:
        self._socket = settings.runtime_socket
        self._maps = Maps(settings.directory)
        self._per_tenant, self._hold_s = settings.places.per_tenant, settings.hold_s
        self._known: LastLook | None = None
        self._everything_s = DEADLINE_S + settings.places.total / _SERVICES_PER_S
        self._looks = _Looks(self._socket)
        self._replaced = _Replaced(settings.master_socket, self._maps)
        self._ring = RingReader(self._socket, self._process, self._replaced.has_requests)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_raised: object) -> None:
        await self._looks.heard()

    async def observe(self) -> Gateway:
        """Return routes, servers and requests, also those of processes that a reload has replaced.

        Replaced processes are asked last: a reload in between may count requests twice for a
        moment, but no request is ever missed.
        """
        # After a look that fails nothing is known, so the next look asks for everything.
        before, self._known = self._known, None
        shown, known = await self._look(before)
        self._known = known
        gateway = replace(shown, per_tenant=self._per_tenant, hold_s=self._hold_s)
        return with_replaced(gateway, await self._replaced.observe(known.process))

    async def _look(self, known: LastLook | None) -> tuple[Gateway, LastLook]:
        """Look at everything that matters, by a glance where that is enough.

        Everything is asked for if HAProxy was started or reloaded or the routes have changed since
        the last look, or if a glance would not be cheaper.
        """
        found = await self._glance(known) if known is not None else None
        if known is not None and found is not None:
            return found, LastLook.of(known.process, found)
        everything = ";".join((WHO, *questions(self._maps)))
        who, shown = _parted(await self._looks.ask(everything, self._everything_s))
        found = _parsed(shown)
        return found, LastLook.of(who, found)

    async def _glance(self, known: LastLook) -> Gateway | None:
        """Return what is seen by a glance; None if everything must be asked for."""
        glance = glance_questions(self._maps, known)
        lines: tuple[str, ...] = (";".join(glance),)
        if len(lines[0]) >= _LINE_BYTES - len(WHO) - 1:
            if not known.idle:
                return None
            lines = tuple(_lines(glance))
        if not glance:
            return None
        for line in _lines(quiet_commands(self._maps, known)):
            await _ask(self._socket, line)
        shown = await self._shown(lines, known.process)
        more = _read(idle_questions, shown, known) if shown is not None else ()
        if more and shown is not None:
            rest = await self._shown(_lines(more), known.process)
            shown = shown + rest if rest is not None else None
        return _read(parse_glance, shown, known) if shown is not None else None

    async def _shown(self, lines: Iterable[str], process: str) -> str | None:
        """Return the answers to these lines; None if another process gives one of them."""
        shown = ""
        for line in lines:
            who, found = _parted(await self._looks.ask(f"{WHO};{line}"))
            if who != process:
                return None
            shown += found
        return shown

    async def hear(self, told: Callable[[str], object]) -> None:
        """Call ``told`` with each line of HAProxy's ring, those first that it still has.

        HAProxy sends what its ring gets, so neither asks the other anything meanwhile. Never
        returns.
        """
        try:
            await self._ring.hear(told)
        except OSError as error:
            raise _down(self._socket, error) from error

    async def _process(self) -> str:
        return _process(await _ask(self._socket, WHO))

    async def timings(self) -> Mapping[str, Timings]:
        """Return how long each service's requests took, by ``tenant/service``."""
        return timings_of(await _ask(self._socket, SHOW_TIMINGS))

    async def fair_positions(self) -> Mapping[str, Position]:
        """Return where the fair queue of each service stands, by ``tenant/service``."""
        now_ms = 1000 * wall_s()
        return positions_of(await _ask(self._socket, SHOW_FAIR), now_ms)

    async def set_priorities(self, entries: Mapping[str, str]) -> None:
        """Set what requests count in fair queues."""
        await self._set_map(self._maps.priorities, entries)

    async def apply(self, changes: Iterable[GatewayChange]) -> None:
        """Make the changes in order; stop at the first that fails."""
        made = tuple(changes)
        # After a change that fails nothing is known of the ones before it.
        known, self._known = self._known, None
        for change in made:
            await self._tell(commands(change, self._maps))
        if (known := self._known or known) is not None:
            self._known = known.with_changes(made)

    async def set_grants(self, grants: GrantsAnswer) -> None:
        """Admit requests with these API keys and no others, to what models mean for their tenants;
        ``protected`` tenants require one.

        What is granted is also written to files, with which HAProxy starts. Streams that another
        key has let in are ended. Raises OSError if this user may not write the files, after HAProxy
        was told.
        """
        asked = dict.fromkeys({*grants.protected, TOLD_KEY}, "yes")
        keys = {sha256: key_entry(key) for sha256, key in grants.keys.items()}
        # In this order no request with a valid key is refused in between.
        limits = limit_entries(grants.limits)
        told = {self._maps.limits: limits, self._maps.keys: keys}
        wanted = {**told, self._maps.protected: asked, self._maps.models: grants.models}
        unwritten: OSError | None = None
        for path, entries in wanted.items():
            try:
                _write_if_other(path, map_text(entries))
            except OSError as error:
                unwritten = error
        for path, entries in wanted.items():
            await self._set_map(path, entries)
        await _end_streams(partial(_ask, self._socket), keys.keys())
        await self._replaced.end_streams(keys.keys())
        if unwritten is not None:
            raise unwritten

    async def taken(self) -> tuple[str, Mapping[str, TakenTokens]]:
        """Return the process, and what of tokens with a limit was taken there, by subject."""
        who, shown = _parted(await _ask(self._socket, f"{WHO};show map {self._maps.taken}"))
        try:
            return who, parse_taken(parse_map(shown))
        except ValueError as error:
            raise _unreadable(error) from error

    async def set_allowances(self, entries: Mapping[str, str]) -> None:
        """Let subjects take so many tokens; the file, with which HAProxy starts, allows none.

        Raises OSError if this user may not write it, after HAProxy was told.
        """
        path = self._maps.allowances
        await self._set_map(path, entries)
        _write_if_other(path, map_text(expired(entries)))

    async def key_ages(self) -> Mapping[str, float]:
        """Return seconds since each API key last let a request in, by the key's SHA-256.

        Keys that were not used within the last two minutes are left out, as are uses that only a
        replaced process has seen.
        """
        used = _parsed_map(await _ask(self._socket, f"show map {self._maps.used}"))
        return key_ages_s(used, await _ask(self._socket, SHOW_STREAMS), wall_s())

    def keep(self, routes: Mapping[str, str]) -> None:
        """Write the routes into the map's file if it holds others: HAProxy starts with them.

        The mark of completeness is not written: a service may come while HAProxy is down. Raises
        OSError if this user may not write there.
        """
        _write_if_other(self._maps.services, map_text(routes))

    async def takes_any_group(self) -> bool:
        """Whether clients may choose any group of TLS, and so how much HAProxy has to compute.

        False also if that can't be determined: HAProxy does not answer yet, or this user may not
        read its OpenSSL configuration.
        """
        try:
            named = _OPENSSL_CONF.match(await _ask(self._socket, "show env OPENSSL_CONF"))
            file = Path(named[1]) if named else _OPENSSL_OWN
            return _GROUPS.search(file.read_text(encoding="utf-8", errors="replace")) is None
        except FileNotFoundError:
            return True
        except (OSError, UnreachableError):
            return False

    async def _set_map(self, path: Path, entries: Mapping[str, str]) -> None:
        """Give a map these entries and no others; only what differs is sent."""
        shown = _parsed_map(await _ask(self._socket, f"show map {path}"))
        await self._tell(entry_commands(path, shown, entries))

    async def _tell(self, told: Sequence[str]) -> None:
        for line in _lines(told):
            answer = await _ask(self._socket, line)
            if left := _OTHER_TRANSACTION.search(answer):
                await _ask(self._socket, f"abort ssl ca-file {left[1]}")
                answer = await _ask(self._socket, line)
            words = [word for word in answer.splitlines() if word.strip()]
            if any(not any(quiet in word for quiet in _QUIET) for word in words):
                raise OutsideError(
                    Code.GATEWAY_FAILED,
                    without_digests(f"HAProxy refused {line!r}: {answer.strip()}"),
                )


def _lines(told: Iterable[str]) -> Iterator[str]:
    """Join commands into lines; a command that continues on further lines stands alone."""
    for is_long, group in groupby(told, key=lambda command: "\n" in command):
        if is_long:
            yield from group
        else:
            commands = list(group)
            line = ""
            for number, command in enumerate(commands):
                is_full = number % _AT_ONCE == 0 or len(line) + len(command) >= _LINE_BYTES
                if line and is_full:
                    yield line
                    line = ""
                line = f"{line};{command}" if line else command
            if line:
                yield line


def prepare(settings: GatewaySettings) -> None:
    """Create in ``gateway.directory`` what HAProxy's configuration names; keep what is there.

    Raises OSError, UnreachableError (SW-PROGRAM).
    """
    identity.create(settings)
    maps = Maps(settings.directory)
    for path in maps.all:
        if not path.exists():
            replace_file(path, "")
    for server in servers(settings):
        file = maps.certificate(server)
        file.parent.mkdir(exist_ok=True)
        if not file.is_symlink():
            # Until a server has a replica, it trusts only the gateway's own certificate.
            file.symlink_to(f"../{identity.KEY}")


class _Replaced:
    """Asks processes that a reload has replaced what they still work on.

    No further process can be replaced while the newest one stays the same: once no replaced process
    lives, the master is not asked again until the newest changes.

    A replaced process that hangs is waited for once. It is not asked again before it has answered,
    as the master has few connections and never closes one that waits; until then its last answer
    counts. One that ends may be listed for a while: the master answers nothing for it, and of ten
    such questions in a row, each of which may take one of its ten connections for good, it would
    answer nobody any more. So after the first one it is not asked again.
    """

    def __init__(self, master: Path, maps: Maps) -> None:
        self._master = master
        self._questions = questions(maps)
        self._asking: dict[int, asyncio.Task[Gateway | None]] = {}
        self._said: dict[int, Gateway | None] = {}
        self._ended: frozenset[int] = frozenset()
        self._last_alone = ""

    async def observe(self, newest: str) -> Sequence[Gateway]:
        """Return what each replaced process still has, without those that never answered.

        ``newest`` is the process that has replaced them all, and has just answered.
        """
        # Without a master nothing is known of them: slicewise doctor says so (SW-GATEWAY-MASTER).
        if newest == self._last_alone or not self._master.exists():
            return ()
        living = frozenset(old_workers(await _ask(self._master, "show proc")))
        self._last_alone = "" if living else newest
        self._forget(self._said.keys() - living, self._asking.keys() - living)
        self._ended &= living
        due = living - self._asking.keys() - self._ended
        new = {process: asyncio.create_task(self._ask(process)) for process in due}
        self._asking |= new
        if new:
            await asyncio.wait(new.values(), timeout=REPLACED_DEADLINE_S)
        for process in [process for process, task in self._asking.items() if task.done()]:
            self._said[process] = self._asking.pop(process).result()
        return [found for found in self._said.values() if found is not None]

    def has_requests(self, process: str) -> bool:
        """Whether a process, of which ``process_of`` has read, still works on requests.

        Also where it has not said it yet.
        """
        number = number_of(process)
        gateway = self._said.get(number)
        backends = gateway.backends.values() if gateway is not None else ()
        return number in self._asking or any(backend.sessions for backend in backends)

    async def end_streams(self, digests: Collection[str]) -> None:
        """End streams that none of these keys has let in, in replaced processes that answer."""
        answering = self._said.keys() - self._asking.keys() - self._ended
        asked = [_end_streams(partial(self._command, process), digests) for process in answering]
        # A process that has just ended, or hangs from now on, is not asked again before it answers.
        with suppress(SlicewiseError):
            await asyncio.gather(*asked)

    async def _command(self, process: int, command: str) -> str:
        return await _ask(self._master, f"@!{process} {command}", REPLACED_DEADLINE_S)

    def _forget(self, said: Iterable[int], asking: Iterable[int]) -> None:
        for process in said:
            del self._said[process]
        for process in asking:
            self._asking.pop(process).cancel()

    async def _ask(self, process: int) -> Gateway | None:
        """Ask one replaced process; None if it has ended or has an older Slicewise's configuration.

        The master takes one question at a time.
        """
        answers = []
        for question in self._questions:
            answer = await _ask(self._master, f"@!{process} {question}", deadline_s=None)
            if not answer:
                self._ended |= {process}
                return None
            answers.append(answer)
        with suppress(OutsideError):
            return _parsed("".join(answers))
        return None


class _Looks:
    """Asks one process for what it has, and hears each answer to its end, however late it comes.

    HAProxy 3.2.26 crashes at the next ``show servers state`` after a client has hung up within an
    answer to it (upstream mended it on 2026-08-06, commit 2d5ef608e). So a question that takes
    too long fails, but its answer is still read, and the next question waits for its end: not
    longer than ``LATEST_S``, as a process that hangs may have been replaced since.
    """

    def __init__(self, socket: Path) -> None:
        self._socket = socket
        self._last: asyncio.Task[str] | None = None
        self._turn = asyncio.Lock()

    async def ask(self, command: str, deadline_s: float | None = None) -> str:
        """Return the answer; raises UnreachableError (SW-GATEWAY-DOWN) without one by then."""
        try:
            async with (
                asyncio.timeout(DEADLINE_S if deadline_s is None else deadline_s),
                self._turn,
            ):
                if self._last is not None:
                    await asyncio.wait({self._last})
                self._last = asyncio.create_task(self._whole(command))
                # Also where the question has failed by then, asyncio wants its end to be looked at.
                self._last.add_done_callback(lambda ended: ended.cancelled() or ended.exception())
                return await asyncio.shield(self._last)
        except OSError as error:
            raise _down(self._socket, error) from error

    async def heard(self) -> None:
        """Wait for the end of the last answer, for ``_AT_END_S`` at most.

        A loop that ends cancels what it still runs, and so would hang up within the answer.
        """
        if self._last is not None:
            await asyncio.wait({self._last}, timeout=_AT_END_S)

    async def _whole(self, command: str) -> str:
        async with asyncio.timeout(LATEST_S):
            return await _exchange(self._socket, command)


async def _end_streams(command: Callable[[str], Awaitable[str]], digests: Collection[str]) -> None:
    """End streams that none of these keys has let in, in the process to which ``command`` talks."""
    numbers = without_key(await command(SHOW_STREAMS), digests)
    if not numbers:
        return
    for end in end_commands(await command(SHOW_SESSIONS), numbers):
        await command(end)


async def _ask(socket: Path, command: str, deadline_s: float | None = DEADLINE_S) -> str:
    try:
        async with asyncio.timeout(deadline_s):
            return await _exchange(socket, command)
    except OSError as error:
        raise _down(socket, error) from error


def _down(socket: Path, error: OSError) -> UnreachableError:
    if isinstance(error, PermissionError):
        return UnreachableError(
            Code.GATEWAY_DOWN,
            f"This user may not use {socket}.",
            "Only root and the launcher's user may: slicewise gateway render --socket-user,"
            " and the user of HAProxy's option -S.",
        )
    return UnreachableError(
        Code.GATEWAY_DOWN,
        f"HAProxy does not answer on {socket}: {type(error).__name__}.",
        "Check that it runs with the configuration of: slicewise gateway render",
    )


async def _exchange(socket: Path, command: str) -> str:
    reader, writer = await asyncio.open_unix_connection(str(socket), limit=_READ_LIMIT)
    try:
        writer.write(f"{command}\n".encode())
        writer.write_eof()  # The master's socket would wait for more commands.
        await writer.drain()
        return (await reader.read(-1)).decode("utf-8", "replace")
    finally:
        writer.close()


def _parsed(text: str) -> Gateway:
    try:
        return parse(text)
    except (KeyError, ValueError, IndexError) as error:
        raise _unreadable(error) from error


def _parted(text: str) -> tuple[str, str]:
    """Split an answer into the process that gave it and the rest."""
    who, _, rest = text.partition("\n\n")
    return _process(who), rest


def _process(shown: str) -> str:
    try:
        return process_of(shown)
    except ValueError as error:
        raise _unreadable(error) from error


def _read(reader: Callable[[str, LastLook], _Found], shown: str, known: LastLook) -> _Found:
    """Read the answers to a glance."""
    try:
        return reader(shown, known)
    except (KeyError, ValueError, IndexError) as error:
        raise _unreadable(error) from error


def _parsed_map(text: str) -> Mapping[str, str]:
    try:
        return parse_map(text)
    except ValueError as error:
        raise _unreadable(error) from error


def _unreadable(error: Exception) -> OutsideError:
    return OutsideError(
        Code.GATEWAY_FAILED,
        without_digests(f"HAProxy's state can't be read: {type(error).__name__} {error}."),
        "Run HAProxy with the configuration of: slicewise gateway render",
    )


def _write_if_other(path: Path, text: str) -> None:
    with suppress(FileNotFoundError, PermissionError):
        if path.read_text(encoding="utf-8") == text:
            return
    replace_file(path, text)


async def check_configuration(path: Path) -> None:
    """Let HAProxy itself check a configuration, and whether it may open as many files as it wants.

    Raises InvalidInputError (SW-SETTINGS) with HAProxy's message, UnreachableError
    (SW-PROGRAM) if the program haproxy is not installed.
    """
    _check_files(path)
    try:
        process = await asyncio.create_subprocess_exec(
            "haproxy", "-c", "-f", str(path), stdout=PIPE, stderr=PIPE
        )
    except FileNotFoundError:
        raise UnreachableError(
            Code.PROGRAM, "The program haproxy is not on PATH.", "Install HAProxy >= 2.6."
        ) from None
    _, errors = await process.communicate()
    if process.returncode:
        told = errors.decode("utf-8", "replace")
        raise InvalidInputError(Code.SETTINGS, f"HAProxy rejects {path}:\n{_alerts(told)}")


async def held_address() -> str:
    """Return the address that systemd holds open for HAProxy; "" if it holds none."""
    words = ("show", "haproxy-slicewise.socket", "--property=ActiveState,Listen")
    try:
        process = await asyncio.create_subprocess_exec(
            "systemctl", *words, stdout=PIPE, stderr=PIPE
        )
    except OSError:
        return ""
    shown, _ = await process.communicate()
    lines = shown.decode("utf-8", "replace").splitlines()
    found = dict(line.split("=", 1) for line in lines if "=" in line)
    return found.get("Listen", "").split(" ")[0] if found.get("ActiveState") == "active" else ""


async def process_facts(settings: GatewaySettings) -> Mapping[str, str]:
    """Return what the running HAProxy says of itself: ``Version``, ``Start_time_sec``, ...

    Raises UnreachableError (SW-GATEWAY-DOWN).
    """
    shown = await _ask(settings.runtime_socket, WHO)
    pairs = (line.partition(":") for line in shown.splitlines())
    return {name: value.strip() for name, colon, value in pairs if colon}


async def is_ours(settings: GatewaySettings) -> bool:
    """Whether the running HAProxy has the configuration of gateway.directory, with its maps.

    Raises UnreachableError (SW-GATEWAY-DOWN).
    """
    # The list of all maps ends where who uses one no longer fits HAProxy's buffer: 64 backends.
    command = f"get map {Maps(settings.directory).services} -"
    return "Unknown map" not in await _ask(settings.runtime_socket, command)


def _alerts(told: str) -> str:
    """Keep what HAProxy refuses first: others follow from it, and warnings would hide it."""
    alerts = (line for line in told.splitlines() if line.startswith("[ALERT]"))
    return _KNOWN_WORDS.sub("knows no such word,", next(alerts, told))


def files_allowed() -> int:
    """Return how many open files HAProxy may have here: the hard limit, up to ``MOST_FILES``."""
    _, hard = getrlimit(RLIMIT_NOFILE)
    return MOST_FILES if hard == RLIM_INFINITY else min(hard, MOST_FILES)


def _check_files(path: Path) -> None:
    """Refuse a configuration with which HAProxy ends at its start; its own check lets it pass."""
    needed = files_needed(path.read_text(encoding="utf-8", errors="replace"))
    allowed = files_allowed()
    if needed > allowed:
        raise InvalidInputError(
            Code.SETTINGS,
            f"{path}: HAProxy would not start: it wants {needed:,} open files, one for each server"
            f" line among them, and may have {allowed:,}.",
            "Lower gateway.backends or gateway.servers, or raise the limit of open files (ulimit"
            f" -n; LimitNOFILE of HAProxy's unit), to {MOST_FILES:,} at most.",
        )
