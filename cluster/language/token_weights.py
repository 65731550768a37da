"""Says how much the tokens of a request weigh: as they cost on the engine that counted them."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from slicewise.cluster.language.measurements import Measurement, TokenFigures

SCALE = 1000
"""The weight of a token of the prompt that the engine had to read."""
MOST_WEIGHT = 1000 * SCALE

_CACHED = SCALE // 10
"""Of a token of the prompt that the engine had in its cache. No measurement tells it."""


@dataclass(frozen=True)
class TokenWeights:
    """Weights of tokens, in thousandths of what a token of a prompt weighs.

    Attributes:
        prompt: of a token of the prompt that is not cached.
        cached_prompt: of a cached one, which is a part of the prompt, too.
        output: of a token of the answer.
    """

    prompt: int = SCALE
    cached_prompt: int = _CACHED
    output: int = 2 * SCALE

    def weigh(self, prompt: int, cached_prompt: int, output: int) -> int:
        """The weight of so many tokens; more cached ones than the prompt has count as its own."""
        cached = min(cached_prompt, prompt)
        return (prompt - cached) * self.prompt + cached * self.cached_prompt + output * self.output


DEFAULT = TokenWeights()
"""Where nothing was measured: an answer's token weighs two of the prompt, as in VTC (OSDI 2024)."""


def weights_of(service: str, output_weights: Mapping[str, float]) -> TokenWeights:
    """Weights of a service's tokens; ``output_weights`` has those of answers by OWNER/NAME."""
    output = output_weights.get(service)
    return DEFAULT if output is None else TokenWeights(output=round(SCALE * output))


def measured_weights(rows: Iterable[Measurement]) -> TokenWeights:
    """Weights as one instance was measured; ``DEFAULT`` if the figures don't tell.

    ``rows`` are one instance's, of one load. Alone, a request has its first token once its prompt
    is read: that is what the prompt costs. At the highest throughput the instance is never idle, so
    what a request takes of it then, less its prompt, is what its answer costs.
    """
    measured = [(row, row.tokens) for row in rows if row.tokens and row.throughput_mrps]
    alone = [tokens for row, tokens in measured if row.batch == 1]
    busiest = max(measured, key=lambda pair: (pair[0].throughput_mrps, pair[0].batch), default=None)
    if not alone or busiest is None:
        return DEFAULT
    request_us = 1_000_000_000 // busiest[0].throughput_mrps
    return _weights(alone[0], request_us - alone[0].ttft_p50_us)


def _weights(alone: TokenFigures, answer_us: int) -> TokenWeights:
    prompt_us = alone.ttft_p50_us
    if min(prompt_us, answer_us, alone.prompt_tokens, alone.output_tokens) <= 0:
        return DEFAULT
    # (answer_us / output_tokens) / (prompt_us / prompt_tokens), rounded to the nearest.
    above, below = SCALE * answer_us * alone.prompt_tokens, prompt_us * alone.output_tokens
    output = (2 * above + below) // (2 * below)
    return TokenWeights(output=min(max(output, 1), MOST_WEIGHT))
