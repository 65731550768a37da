"""A language model of a megabyte for vLLM, as Hugging Face's tools save one.

Its weights are random, and it has a token for each byte.

The format: https://github.com/huggingface/safetensors#format
"""

import json
import random
import struct
from collections.abc import Iterable, Iterator
from pathlib import Path

_WIDTH, _INNER, _LAYERS, _HEADS, _TOKENS = 128, 256, 2, 2, 320
_SPREAD = 0.02
_SPECIAL = ("<s>", "</s>", "<pad>")
_CONFIG = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "dtype": "bfloat16",
    "vocab_size": _TOKENS,
    "hidden_size": _WIDTH,
    "intermediate_size": _INNER,
    "num_hidden_layers": _LAYERS,
    "num_attention_heads": _HEADS,
    "num_key_value_heads": _HEADS,
    "head_dim": _WIDTH // _HEADS,
    "hidden_act": "silu",
    "max_position_embeddings": 2048,
    "rms_norm_eps": 1e-6,
    "bos_token_id": 0,
    "eos_token_id": 1,
    "pad_token_id": 2,
}
_BYTES = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": True}


def write_tiny_model(directory: Path) -> None:
    """Write its configuration, tokenizer and weights; the weights' file goes last."""
    directory.mkdir(parents=True)
    (directory / "config.json").write_text(json.dumps(_CONFIG))
    (directory / "tokenizer.json").write_text(json.dumps(_tokenizer()))
    names = {"bos_token": "<s>", "eos_token": "</s>", "pad_token": "<pad>"}
    template = "{% for m in messages %}{{ m['content'] }}{% endfor %}"
    (directory / "tokenizer_config.json").write_text(
        json.dumps(
            {"tokenizer_class": "PreTrainedTokenizerFast", "chat_template": template, **names}
        )
    )
    (directory / "model.safetensors").write_bytes(_safetensors(_tensors(), _SPREAD))


def write_tiny_adapter(directory: Path, rank: int) -> None:
    """Write a LoRA adapter of that model, as PEFT does, by which it says something else."""
    directory.mkdir(parents=True)
    modules = ["q_proj", "v_proj"]
    config = {"peft_type": "LORA", "r": rank, "lora_alpha": 2 * rank, "target_modules": modules}
    (directory / "adapter_config.json").write_text(
        json.dumps(config | {"base_model_name_or_path": "tiny", "bias": "none"})
    )
    tensors = [
        (f"base_model.model.model.layers.{layer}.self_attn.{module}.lora_{part}.weight", shape)
        for layer in range(_LAYERS)
        for module in modules
        for part, shape in (("A", [rank, _WIDTH]), ("B", [_WIDTH, rank]))
    ]
    (directory / "adapter_model.safetensors").write_bytes(_safetensors(tensors, 1.0))


def _safetensors(tensors: Iterable[tuple[str, list[int]]], spread: float) -> bytes:
    header: dict[str, object] = {}
    content = b""
    for name, shape in tensors:
        data = _weights(name, shape, spread)
        place = [len(content), len(content) + len(data)]
        header[name] = {"dtype": "BF16", "shape": shape, "data_offsets": place}
        content += data
    head = json.dumps(header).encode()
    return struct.pack("<Q", len(head)) + head + content


def _tensors() -> Iterator[tuple[str, list[int]]]:
    yield "model.embed_tokens.weight", [_TOKENS, _WIDTH]
    yield "model.norm.weight", [_WIDTH]
    yield "lm_head.weight", [_TOKENS, _WIDTH]
    for layer in (f"model.layers.{number}" for number in range(_LAYERS)):
        for name in ("input_layernorm", "post_attention_layernorm"):
            yield f"{layer}.{name}.weight", [_WIDTH]
        for name in "qkvo":
            yield f"{layer}.self_attn.{name}_proj.weight", [_WIDTH, _WIDTH]
        for name in ("gate_proj", "up_proj"):
            yield f"{layer}.mlp.{name}.weight", [_INNER, _WIDTH]
        yield f"{layer}.mlp.down_proj.weight", [_WIDTH, _INNER]


def _weights(name: str, shape: list[int], spread: float) -> bytes:
    """In bfloat16: the upper half of a float's bytes."""
    chance = random.Random(name)  # noqa: S311 -- weights, no secrets
    is_norm = len(shape) == 1
    count = shape[0] * (1 if is_norm else shape[1])
    numbers = [1.0 if is_norm else chance.gauss(0, spread) for _ in range(count)]
    floats = struct.pack(f"<{count}f", *numbers)
    return b"".join(floats[at + 2 : at + 4] for at in range(0, len(floats), 4))


def _tokenizer() -> object:
    added = [
        {"id": number, "content": text, "special": True, "normalized": False}
        | dict.fromkeys(("single_word", "lstrip", "rstrip"), False)
        for number, text in enumerate(_SPECIAL)
    ]
    vocabulary = {text: number for number, text in enumerate((*_SPECIAL, *_alphabet()))}
    return {
        "version": "1.0",
        "added_tokens": added,
        "pre_tokenizer": _BYTES,
        "decoder": _BYTES,
        "model": {"type": "BPE", "vocab": vocabulary, "merges": []},
    }


def _alphabet() -> Iterator[str]:
    """Characters for the 256 bytes, as GPT-2's tokenizer writes them."""
    printable = {*range(33, 127), *range(161, 173), *range(174, 256)}
    others = 256
    for byte in range(256):
        if byte in printable:
            yield chr(byte)
        else:
            yield chr(others)
            others += 1
