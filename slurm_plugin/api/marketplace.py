"""The door for a marketplace's agent: keys by order, their limits, blocks and usage.

It speaks what Waldur's agent asks of LiteLLM, and nothing else of that. A token opens it for one
tenant, which the operator names: whatever the agent says, it makes, sees and changes the keys alone
that it made for that tenant.
"""

import asyncio
import hmac
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import fields
from functools import partial
from hashlib import sha256
from http import HTTPStatus
from pathlib import Path
from time import monotonic
from typing import Any
from urllib.parse import parse_qsl

from aiohttp import web
from pydantic import BaseModel, ValidationError
from pydantic_core import to_json

from slicewise.cluster.language.codes import Code
from slicewise.cluster.language.errors import InvalidInputError, Refusal, SlicewiseError
from slicewise.cluster.language.leader import Leader
from slicewise.cluster.language.persons import NOBODY
from slicewise.cluster.rpc.key_messages import KeyView
from slicewise.cluster.rpc.limit_messages import LimitChangeRequest, RequestLimits, SubjectLimits
from slicewise.cluster.rpc.new_key import new_key
from slicewise.cluster.rpc.usage_messages import AllowanceSubject
from slicewise.cluster.runtime.wall_clock import wall_s
from slicewise.cluster.settings.file import MarketplaceSettings, host_and_port
from slicewise.slurm_plugin.api.http_server import HttpLimits, HttpServer, Question
from slicewise.slurm_plugin.api.places import Guests
from slicewise.slurm_plugin.api.reads import Reads
from slicewise.slurm_plugin.api.routes import status_of
from slicewise.slurm_plugin.common.log import report, report_failure
from slicewise.slurm_plugin.common.marketplace_requests import (
    ActivitySearch,
    ChangedLimits,
    EndedKeys,
    KeySearch,
    NamedKey,
    NothingMore,
    OrderedKey,
)
from slicewise.slurm_plugin.common.sockets import failure
from slicewise.slurm_plugin.common.usage_requests import TokenUsageRequest
from slicewise.slurm_plugin.ledger.keys import NewKey
from slicewise.slurm_plugin.ledger.store import Ledger
from slicewise.slurm_plugin.ledger.usage_reads import UsageReader
from slicewise.slurm_plugin.rules.accounting.charge_lines import RequestDay
from slicewise.slurm_plugin.rules.accounting.usage_costs import UsedPart, usage_costs
from slicewise.slurm_plugin.rules.common.connection_places import ConnectionLimits
from slicewise.slurm_plugin.rules.services.marketplace import (
    AGENT,
    KeyUse,
    OrderKeyRecord,
    daily_activity,
    is_of_marketplace,
    key_record,
)
from slicewise.slurm_plugin.rules.services.rate_limit import (
    RateLimit,
    RateUse,
    after_change,
    wait_s,
)

LIMITS = HttpLimits(question_s=10.0, answer_s=30.0, body_bytes=64 * 1024, refused=16)
_PLACES = ConnectionLimits(connections=16, per_host=16, per_prefix=16, grace_s=0.5)
_RATE = RateLimit(at_once=240, every_s=15.0)
"""Of changes for one tenant, which add rows that stay. Blocking and ending keys is never late."""
_LEAST_TOKEN_BYTES = 32
_MOST_TOKEN_BYTES = 4096
_MOST_LINES = 50_000
"""Of a day, a key and a service each: some 20 MB."""
_NO_TOKEN = Refusal(
    Code.MARKETPLACE_TOKEN,
    "This token opens nothing here.",
    "The offering's api_token is what the file holds that [marketplace.tokens] names.",
)
_NO_QUESTION = Refusal(Code.WIRE, "This is no HTTP request.")
_REPORT_EVERY_S = 10.0
_READS = 2
"""At a time, as many as one user has; further ones wait."""

_USE = {field.name for field in fields(KeyUse)}

_Answer = Callable[[Any, str], Awaitable[object]]


class MarketplaceDoor:
    """Serves the agent; off where ``listen`` is empty.

    ``requires_keys``: whether the gateway wants keys of all, so that a first one closes nothing;
    ``time_zone``: that of the ledger's days.
    """

    def __init__(
        self,
        settings: MarketplaceSettings,
        ledger: Ledger,
        reads: Reads,
        leader: Leader,
        *,
        on_change: Callable[[], Awaitable[None]],
        requires_keys: bool,
        time_zone: str,
        is_tenant: Callable[[str], bool],
    ) -> None:
        self._settings = settings
        self._ledger = ledger
        self._reads = reads
        self._leader = leader
        self._on_change = on_change
        self._requires_keys = requires_keys
        self._zone = time_zone
        self._is_tenant = is_tenant
        self._server = HttpServer(Guests(_PLACES), self._reply, LIMITS, lambda _: _NO_QUESTION)
        self._changing = asyncio.Lock()
        self._reading = asyncio.Semaphore(_READS)
        self._used: dict[str, RateUse] = {}
        self._report_due_s = 0.0
        self._places: Mapping[str, tuple[type[BaseModel], _Answer]] = {
            "GET /health/readiness": (NothingMore, self._is_ready),
            "GET /key/list": (KeySearch, self._list),
            "GET /key/info": (NamedKey, self._info),
            "GET /user/daily/activity": (ActivitySearch, self._activity),
            "POST /key/generate": (OrderedKey, self._generate),
            "POST /key/update": (ChangedLimits, self._update),
            "POST /key/block": (NamedKey, partial(self._block, is_blocked=True)),
            "POST /key/unblock": (NamedKey, partial(self._block, is_blocked=False)),
            "POST /key/delete": (EndedKeys, self._delete),
        }

    async def start(self) -> None:
        """Listen, if ``listen`` is set; SlicewiseError (SW-SETTINGS) if that is impossible."""
        if not self._settings.listen:
            return
        try:
            await self._server.start_tcp(*host_and_port(self._settings.listen))
        except OSError as error:
            raise SlicewiseError(
                Code.SETTINGS,
                f"marketplace.listen: {self._settings.listen}: {error.strerror}.",
                "Name a loopback address and a port that is free.",
            ) from None

    async def stop(self) -> None:
        """Stop listening and end every connection."""
        await self._server.stop()

    async def _reply(self, question: Question) -> web.StreamResponse:
        try:
            answer, status = await self._answer(question), HTTPStatus.OK
        except ValidationError as error:
            refusal = Refusal(Code.MARKETPLACE, f"{_problem(error)}.")
            answer, status = failure(refusal).model_dump(), HTTPStatus.BAD_REQUEST
        except SlicewiseError as error:
            answer, status = failure(error.refusal).model_dump(), _status(error)
        except Exception as error:  # noqa: BLE001 -- one bad request must not end the daemon
            report_failure("request_failed", error)
            refusal = Refusal(Code.INTERNAL, "The daemon failed; its log says how.")
            answer, status = failure(refusal).model_dump(), HTTPStatus.INTERNAL_SERVER_ERROR
        question.connection.answers()
        return web.Response(status=status, body=to_json(answer), content_type="application/json")

    async def _answer(self, question: Question) -> object:
        """What is answered; whoever has no token learns nothing, not even which places there are.

        Raises InvalidInputError, ValidationError, and UnreachableError as the ledger does.
        """
        request = question.request
        tenant = await self._tenant_of(request.headers.get("Authorization", ""))
        self._leader.require()
        path, _, query = request.raw_path.partition("?")
        place = f"{request.method} {path}"
        question_type, answer = self._places.get(place) or self._regenerating(place)
        if request.method == "GET":
            return await answer(question_type.model_validate(dict(parse_qsl(query))), tenant)
        asked = question_type.model_validate_json(question.body)
        async with self._changing:
            answered = await answer(asked, tenant)
            await self._on_change()
        return answered

    def _regenerating(self, place: str) -> tuple[type[BaseModel], _Answer]:
        """What answers POST /key/TOKEN/regenerate; InvalidInputError (SW-WIRE) for other places."""
        start, _, rest = place.partition("/key/")
        token, _, verb = rest.partition("/")
        if (start, verb) != ("POST ", "regenerate"):
            raise InvalidInputError(Code.WIRE, f"There is nothing to ask at {place[:64]!r}.")
        return NothingMore, lambda _, tenant: self._regenerate(token, tenant)

    async def _tenant_of(self, authorization: str) -> str:
        """The tenant for which a token opens the door; InvalidInputError (SW-MARKETPLACE-TOKEN).

        All tokens are compared, and each takes as long, whichever it is.
        """
        given = authorization.removeprefix("Bearer ").encode("utf-8", "surrogateescape")
        digest = sha256(given).digest()
        tokens = await asyncio.to_thread(self._token_hashes)
        opened = [name for name, token in tokens.items() if hmac.compare_digest(digest, token)]
        if len(opened) != 1:
            error = InvalidInputError(_NO_TOKEN.code, _NO_TOKEN.message, _NO_TOKEN.hint)
            self._log_refusal(error)
            raise error
        return opened[0]

    def _token_hashes(self) -> Mapping[str, bytes]:
        hashes = {}
        for tenant, file in self._settings.tokens.items():
            try:
                hashes[tenant] = sha256(_token_in(file)).digest()
            except OSError as error:
                self._log_refusal(error, tenant=tenant, file=file)
        return hashes

    def _log_refusal(self, error: Exception, **fields: object) -> None:
        """Log it, at most every ``_REPORT_EVERY_S`` seconds: who can connect could fill the log."""
        if monotonic() >= self._report_due_s:
            self._report_due_s = monotonic() + _REPORT_EVERY_S
            report_failure("credential_refused", error, **fields)

    async def _from_ledger(self, read: Callable[[], Any]) -> Any:
        # As one user: operators' reads have a line of their own, which no agent may fill.
        async with self._reading:
            return await self._reads.from_ledger(AGENT, read)

    async def _keys(self, tenant: str) -> tuple[KeyView, ...]:
        """All keys that the agent ever made for the tenant."""
        keys = await self._from_ledger(self._ledger.keys.all)
        return tuple(key for key in keys if is_of_marketplace(key, tenant))

    async def _records(self, tenant: str) -> list[OrderKeyRecord]:
        """Those of them that are not ended, in order."""
        limits = {key_id: held.limits for key_id, held in (await self._limits(tenant)).items()}
        return [
            key_record(key, limits.get(key.key_id, RequestLimits()))
            for key in await self._keys(tenant)
            if key.is_valid(wall_s())
        ]

    async def _limits(self, tenant: str) -> Mapping[str, SubjectLimits]:
        standing = await self._from_ledger(self._ledger.request_limits.standing_limits)
        return {held.key_id: held for held in standing if held.tenant == tenant and held.key_id}

    async def _record(self, token: str, tenant: str) -> OrderKeyRecord:
        """A key that is not ended; InvalidInputError (SW-NAME-UNKNOWN) if it is none."""
        for record in await self._records(tenant):
            if record.token == token:
                return record
        raise _unknown(token)

    async def _is_ready(self, _: NothingMore, tenant: str) -> object:
        await self._limits(tenant)
        return {"status": "healthy", "db": "connected"}

    async def _list(self, search: KeySearch, tenant: str) -> object:
        every = await self._records(tenant)
        records = [record for record in every if search.finds(record.key_alias)]
        keys = records if search.page == 1 else []
        return {
            "keys": [record.model_dump() for record in keys],
            "total_count": len(records),
            "current_page": search.page,
            "total_pages": 1,
        }

    async def _info(self, named: NamedKey, tenant: str) -> object:
        record = await self._record(named.key, tenant)
        return {"key": record.token, "info": record.model_dump()}

    async def _activity(self, search: ActivitySearch, tenant: str) -> object:
        aliases = {key.key_id: key.name for key in await self._keys(tenant)}
        since_s, until_s = search.span_s
        request = TokenUsageRequest(by="key", tenant=tenant, since_s=since_s, until_s=until_s)
        read = partial(
            self._ledger.usage_reads.lines,
            *(request, UsageReader(AGENT, None), "UTC", _MOST_LINES + 1),
            fields=("day", "key_id", "service"),
        )
        lines = await self._from_ledger(read) if search.page == 1 else ()
        if len(lines) > _MOST_LINES:
            raise InvalidInputError(
                Code.MARKETPLACE, f"That is more than {_MOST_LINES} lines.", "Ask for fewer days."
            )
        metadata = {"page": search.page, "total_pages": 1, "has_more": False}
        used = tuple(KeyUse(**line.model_dump(include=_USE)) for line in lines)
        book = await self._from_ledger(partial(self._ledger.tariffs.book, self._zone))
        places = {(use.day, tenant, use.service) for use in used if use.millislice_s}
        mixes = await self._from_ledger(partial(self._ledger.tariffs.type_mixes, places))

        def activity() -> object:
            parts = [_part(use, tenant) for use in used]
            costs = dict(zip(used, usage_costs(parts, mixes, book), strict=True))
            return daily_activity(used, aliases, lambda use: costs[use] or 0)

        return {"results": await asyncio.to_thread(activity), "metadata": metadata}

    async def _generate(self, order: OrderedKey, tenant: str) -> object:
        if not self._is_tenant(tenant):
            raise InvalidInputError(
                Code.TENANT_UNKNOWN,
                f"[marketplace.tokens] names {tenant!r}, which has no quota.",
                "The operator can give it one: slicewise tenant-quota set",
            )
        await self._require_closed(tenant)
        self._take(tenant)
        if any(record.key_alias == order.key_alias for record in await self._records(tenant)):
            raise InvalidInputError(
                Code.KEY_TWICE, f"There is a key {order.key_alias!r} already.", "Delete it first."
            )
        limits = RequestLimits(**order.limits, models=order.models or None)
        return await self._mint(order.key_alias, tenant, limits, is_blocked=order.blocked)

    async def _require_closed(self, tenant: str) -> None:
        """An order must not close services that clients ask without a key: InvalidInputError."""
        grants = None if self._requires_keys else await self._from_ledger(self._ledger.keys.grants)
        if grants is not None and tenant not in grants.wanted_from_s:
            raise InvalidInputError(
                Code.KEY_FIRST,
                f"This would be {tenant}'s first key: all of its services would refuse requests"
                " without a key, also those that clients use now.",
                f"The operator says from when they do: slicewise key require {tenant} --from 30d",
            )

    async def _regenerate(self, token: str, tenant: str) -> object:
        """Another key in the place of one, with the limits that it has."""
        self._take(tenant)
        record = await self._record(token, tenant)
        held = (await self._limits(tenant)).get(token)
        limits = held.limits if held else RequestLimits()
        return await self._mint(
            record.key_alias, tenant, limits, is_blocked=record.blocked, in_place_of=token
        )

    async def _mint(
        self,
        alias: str,
        tenant: str,
        limits: RequestLimits,
        *,
        is_blocked: bool,
        in_place_of: str = "",
    ) -> object:
        """Make a key, limited and blocked before it is there; another ends only with that."""
        made = new_key()
        change = LimitChangeRequest(limits=limits, is_exact=limits.is_exact or None)
        await self._change_limits(made.key_id, tenant, change)
        if is_blocked:
            await self._set_block(made.key_id, tenant, is_blocked=True)
        new = NewKey(made.key_id, tenant, alias, made.sha256, author=AGENT, person=NOBODY)
        await self._from_ledger(partial(self._ledger.keys.add, new, in_place_of=in_place_of))
        about = {"key": made.key_id, "tenant": tenant, "user": AGENT}
        report("key_created", **about, service="", expires_s=None)
        if in_place_of:
            report("key_revoked", key=in_place_of, user=AGENT, tenant=tenant)
        record = await self._record(made.key_id, tenant)
        return {**record.model_dump(), "key": made.key}

    async def _update(self, change: ChangedLimits, tenant: str) -> object:
        self._take(tenant)
        await self._record(change.key, tenant)
        given, lifted = (
            change.limits,
            [name for name, held in change.limits.items() if held is None],
        )
        limits = LimitChangeRequest(limits=RequestLimits(**given), lifted=frozenset(lifted))
        await self._change_limits(change.key, tenant, limits)
        return (await self._record(change.key, tenant)).model_dump()

    async def _change_limits(self, key_id: str, tenant: str, change: LimitChangeRequest) -> None:
        """Change what the agent has set; what managers and operators have set holds beside it."""
        subject = AllowanceSubject(tenant=tenant, key_id=key_id)
        changes = self._ledger.request_limits.change_limits
        await self._from_ledger(partial(changes, subject, change, AGENT, "person"))
        report("request_limits_changed", **subject.model_dump(), user=AGENT)

    async def _block(self, named: NamedKey, tenant: str, *, is_blocked: bool) -> object:
        record = await self._record(named.key, tenant)
        if record.blocked != is_blocked:
            if not is_blocked:
                self._take(tenant)
            await self._set_block(named.key, tenant, is_blocked=is_blocked)
        return (await self._record(named.key, tenant)).model_dump()

    async def _set_block(self, key_id: str, tenant: str, *, is_blocked: bool) -> None:
        block = partial(self._ledger.keys.block, key_id, AGENT, is_blocked=is_blocked)
        await self._from_ledger(block)
        report("key_blocked", key=key_id, tenant=tenant, user=AGENT, is_blocked=is_blocked)

    async def _delete(self, ended: EndedKeys, tenant: str) -> object:
        keys = {key.key_id: key for key in await self._keys(tenant)}
        for token in ended.keys:
            if token not in keys:
                raise _unknown(token)
        for token in dict.fromkeys(ended.keys):
            if keys[token].revoked_s is None:
                await self._end(token, tenant)
        return {"deleted_keys": list(ended.keys)}

    async def _end(self, token: str, tenant: str) -> None:
        await self._from_ledger(partial(self._ledger.keys.revoke, token, AGENT))
        report("key_revoked", key=token, user=AGENT, tenant=tenant)

    def _take(self, tenant: str) -> None:
        """Count a change; InvalidInputError (SW-RATE) if it comes too early."""
        used, now_s = self._used.get(tenant, RateUse()), monotonic()
        if wait := wait_s(used, _RATE, now_s):
            raise InvalidInputError(
                Code.RATE,
                f"The marketplace has changed {tenant}'s keys {_RATE.at_once} times in a row.",
                f"Once in {_RATE.every_s:g} s is allowed: try again in {wait:.0f} s.",
            )
        self._used[tenant] = after_change(used, _RATE, now_s)


def _part(use: KeyUse, tenant: str) -> UsedPart:
    amounts = (use.requests, use.prompt_tokens, use.cached_prompt_tokens, use.output_tokens)
    day = RequestDay(use.day, tenant, use.key_id, use.service, *amounts)
    return UsedPart(day, use.millislice_s)


def _token_in(file: Path) -> bytes:
    """The token; OSError if it can't be read, or is none."""
    with file.open("rb") as opened:
        token = opened.read(_MOST_TOKEN_BYTES).strip()
    if len(token) < _LEAST_TOKEN_BYTES:
        raise OSError(f"a token has {_LEAST_TOKEN_BYTES} bytes at least")
    return token


def _unknown(token: str) -> InvalidInputError:
    return InvalidInputError(Code.NAME_UNKNOWN, f"Key {token!r} is none of the marketplace's.")


def _problem(error: ValidationError) -> str:
    first = error.errors(include_url=False, include_input=False)[0]
    reason = first["msg"].removeprefix("Value error, ")
    return f"{'.'.join(str(part) for part in first['loc']) or 'body'}: {reason}"


def _status(error: SlicewiseError) -> HTTPStatus:
    if error.refusal.code == Code.MARKETPLACE_TOKEN:
        return HTTPStatus.UNAUTHORIZED
    return status_of(error)
