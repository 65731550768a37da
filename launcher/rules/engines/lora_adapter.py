"""Says of a directory whether it is a LoRA adapter as PEFT saves one, and why it can't be loaded.

https://huggingface.co/docs/peft/developer_guides/checkpoint
"""

from collections.abc import Iterator, Mapping

from slicewise.cluster.language.adapters import MOST_RANK

CONFIG, WEIGHTS = "adapter_config.json", "adapter_model.safetensors"
_NOT_SERVED = ("use_dora", "lora_bias", "layer_replication", "alora_invocation_tokens")
"""Parts of PEFT's configuration that change what an adapter computes and that engines refuse."""


def adapter_problems(
    entries: frozenset[str], config: Mapping[str, object], rank: int
) -> Iterator[str]:
    """Yield why an adapter can't be loaded: its files, then its configuration.

    ``entries`` are the files in its directory; ``rank`` is the largest rank that replicas load.
    """
    yield from (f"no {name}" for name in (CONFIG, WEIGHTS) if name not in entries)
    if CONFIG not in entries:
        return
    if (kind := config.get("peft_type", "LORA")) != "LORA":
        yield f"its peft_type is {kind!r:.60}, not LORA"
    ranks = [config.get("r"), *_patterns(config.get("rank_pattern"))]
    numbers = [rank for rank in ranks if isinstance(rank, int) and rank > 0]
    if len(numbers) < len(ranks):
        yield "its r is no positive whole number"
    elif max(numbers) > MOST_RANK:
        yield f"its rank is {max(numbers)}: no engine loads one above {MOST_RANK}"
    elif max(numbers) > rank:
        yield f"its rank is {max(numbers)}, above {rank}: write adapter_rank = {max(numbers)}"
    yield from (f"{name} is not served" for name in _NOT_SERVED if config.get(name))
    if config.get("bias", "none") != "none":
        yield "bias is not served"


def other_base(config: Mapping[str, object], model: str) -> str:
    """Return the name of the model that the adapter was made for if it seems to be another.

    Names differ from site to site, so it is no mistake for sure.
    """
    base = config.get("base_model_name_or_path")
    name = base.rstrip("/").rpartition("/")[2] if isinstance(base, str) else ""
    return name[:100] if name and name.lower() != model.lower() else ""


def _patterns(value: object) -> tuple[object, ...]:
    return tuple(value.values()) if isinstance(value, Mapping) else ()
