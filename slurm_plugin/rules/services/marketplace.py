"""What keys of a marketplace and their usage are, in the words of LiteLLM that its agent reads."""

from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

from pydantic import BaseModel

from slicewise.cluster.language.persons import NOBODY
from slicewise.cluster.rpc.key_messages import KeyView
from slicewise.cluster.rpc.limit_messages import RequestLimits
from slicewise.slurm_plugin.rules.accounting.tariff import MILLIONTHS

AGENT = "(marketplace)"
"""Who changed something, where the agent did: no user's name."""


@dataclass(frozen=True)
class KeyUse:
    """What the requests with a key, to a service, on a day come to."""

    day: str
    key_id: str
    service: str
    requests: int
    prompt_tokens: int
    cached_prompt_tokens: int
    output_tokens: int
    millislice_s: int


class OrderKeyRecord(BaseModel):
    """A key as the agent reads it back; its secret is in the answer that makes it alone."""

    token: str
    key_alias: str
    blocked: bool
    models: tuple[str, ...]
    tpm_limit: int | None
    rpm_limit: int | None
    max_budget: None = None
    budget_duration: None = None


def is_of_marketplace(key: KeyView, tenant: str) -> bool:
    """Whether the agent made the key for the tenant: it sees no other."""
    return (key.tenant, key.created_by, key.person) == (tenant, AGENT, NOBODY)


def key_record(key: KeyView, limits: RequestLimits) -> OrderKeyRecord:
    """The key in LiteLLM's words."""
    return OrderKeyRecord(
        token=key.key_id,
        key_alias=key.name,
        blocked=key.is_blocked,
        models=limits.models or (),
        tpm_limit=limits.tokens_per_minute,
        rpm_limit=limits.requests_per_minute,
    )


def daily_activity(
    lines: Iterable[KeyUse], aliases: Mapping[str, str], cost: Callable[[KeyUse], int]
) -> Sequence[Mapping[str, object]]:
    """Usage of each day that has some: in all, by key, by model, and by both.

    ``cost`` is what a line costs, in millionths of the currency. What is of keys that have no alias
    is left out.
    """
    days = _parted((line for line in lines if line.key_id in aliases), "day")

    def metrics(part: Sequence[KeyUse]) -> Mapping[str, float]:
        return _metrics(part, cost)

    def by_key(part: Sequence[KeyUse]) -> Mapping[str, object]:
        return {
            key_id: {"metrics": metrics(own), "metadata": {"key_alias": aliases[key_id]}}
            for key_id, own in _parted(part, "key_id").items()
        }

    return [
        {
            "date": day,
            "metrics": metrics(of_day),
            "breakdown": {
                "api_keys": by_key(of_day),
                "models": {
                    service: {"metrics": metrics(part), "api_key_breakdown": by_key(part)}
                    for service, part in _parted(of_day, "service").items()
                },
            },
        }
        for day, of_day in sorted(days.items())
    ]


def _parted(lines: Iterable[KeyUse], field: str) -> Mapping[str, Sequence[KeyUse]]:
    parts: dict[str, list[KeyUse]] = defaultdict(list)
    for line in lines:
        parts[getattr(line, field)].append(line)
    return parts


def _metrics(lines: Sequence[KeyUse], cost: Callable[[KeyUse], int]) -> Mapping[str, float]:
    """``spend`` is what the requests, and what of the replicas' time was charged, cost."""
    prompts = sum(line.prompt_tokens for line in lines)
    outputs = sum(line.output_tokens for line in lines)
    return {
        "spend": sum(map(cost, lines)) / MILLIONTHS,
        "prompt_tokens": prompts,
        "completion_tokens": outputs,
        "cache_read_input_tokens": sum(line.cached_prompt_tokens for line in lines),
        "total_tokens": prompts + outputs,
        "api_requests": sum(line.requests for line in lines),
    }
