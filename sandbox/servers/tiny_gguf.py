"""A language model of half a megabyte for llama.cpp: random weights, and a token for each byte.

The format: https://github.com/ggml-org/ggml/blob/master/docs/gguf.md (version 3).
"""

import random
import struct
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

_WIDTH, _INNER, _LAYERS, _HEADS = 64, 128, 2, 2
_CONTEXT = 32_768
_TOKENS = ("<unk>", "<s>", "</s>", *(f"<0x{byte:02X}>" for byte in range(256)))
_UNKNOWN, _CONTROL, _BYTE = 2, 3, 6
_ALIGNMENT = 32
_UINT32, _INT32, _FLOAT32, _BOOL, _STRING, _ARRAY = 4, 5, 6, 7, 8, 9
_CODES = {_UINT32: "<I", _INT32: "<i", _FLOAT32: "<f", _BOOL: "<?"}
_KEYS: Sequence[tuple[str, int, Any]] = (
    ("general.architecture", _STRING, "llama"),
    ("llama.context_length", _UINT32, _CONTEXT),
    ("llama.embedding_length", _UINT32, _WIDTH),
    ("llama.block_count", _UINT32, _LAYERS),
    ("llama.feed_forward_length", _UINT32, _INNER),
    ("llama.attention.head_count", _UINT32, _HEADS),
    ("llama.attention.head_count_kv", _UINT32, _HEADS),
    ("llama.attention.layer_norm_rms_epsilon", _FLOAT32, 1e-5),
    ("llama.rope.dimension_count", _UINT32, _WIDTH // _HEADS),
    ("llama.vocab_size", _UINT32, len(_TOKENS)),
    ("tokenizer.ggml.model", _STRING, "llama"),
    ("tokenizer.ggml.tokens", _ARRAY, (_STRING, _TOKENS)),
    ("tokenizer.ggml.scores", _ARRAY, (_FLOAT32, [0.0] * len(_TOKENS))),
    (
        "tokenizer.ggml.token_type",
        _ARRAY,
        (_INT32, [_UNKNOWN, _CONTROL, _CONTROL, *[_BYTE] * 256]),
    ),
    ("tokenizer.ggml.bos_token_id", _UINT32, 1),
    ("tokenizer.ggml.eos_token_id", _UINT32, 2),
    ("tokenizer.ggml.unknown_token_id", _UINT32, 0),
    ("tokenizer.chat_template", _STRING, "{% for m in messages %}{{ m['content'] }}{% endfor %}"),
)


def write_tiny_model(file: Path) -> None:
    """Write the model; llama.cpp loads it in a moment and has a context of ``_CONTEXT`` tokens."""
    tensors = list(_tensors())
    head = b"GGUF" + struct.pack("<IQQ", 3, len(tensors), len(_KEYS))
    for key, kind, value in _KEYS:
        head += _value(_STRING, key) + struct.pack("<I", kind) + _value(kind, value)
    content = b""
    for name, shape, numbers in tensors:
        dimensions = struct.pack(f"<I{len(shape)}Q", len(shape), *shape)
        head += _value(_STRING, name) + dimensions + struct.pack("<IQ", 0, len(content))
        content += _padded(struct.pack(f"<{len(numbers)}f", *numbers))
    file.write_bytes(_padded(head) + content)


def _value(kind: int, value: Any) -> bytes:
    if kind == _STRING:
        text = str(value).encode()
        return struct.pack("<Q", len(text)) + text
    if kind == _ARRAY:
        of, values = value
        return struct.pack("<IQ", of, len(values)) + b"".join(_value(of, value) for value in values)
    return struct.pack(_CODES[kind], value)


def _padded(content: bytes) -> bytes:
    return content + bytes(-len(content) % _ALIGNMENT)


def _tensors() -> Iterator[tuple[str, Sequence[int], Sequence[float]]]:
    """Name, shape (the fastest dimension first) and numbers of each."""
    chance = random.Random(0)  # noqa: S311 -- weights, no secrets

    def weights(name: str, *shape: int) -> tuple[str, Sequence[int], Sequence[float]]:
        count = shape[0] * shape[1] if len(shape) > 1 else shape[0]
        is_norm = len(shape) == 1
        return name, shape, [1.0 if is_norm else chance.gauss(0, 0.02) for _ in range(count)]

    yield weights("token_embd.weight", _WIDTH, len(_TOKENS))
    yield weights("output_norm.weight", _WIDTH)
    yield weights("output.weight", _WIDTH, len(_TOKENS))
    for layer in (f"blk.{number}" for number in range(_LAYERS)):
        yield weights(f"{layer}.attn_norm.weight", _WIDTH)
        yield weights(f"{layer}.ffn_norm.weight", _WIDTH)
        for part in ("attn_q", "attn_k", "attn_v", "attn_output"):
            yield weights(f"{layer}.{part}.weight", _WIDTH, _WIDTH)
        yield weights(f"{layer}.ffn_gate.weight", _WIDTH, _INNER)
        yield weights(f"{layer}.ffn_up.weight", _WIDTH, _INNER)
        yield weights(f"{layer}.ffn_down.weight", _INNER, _WIDTH)
