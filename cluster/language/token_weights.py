"""Says how much the tokens of a request weigh."""

from dataclasses import dataclass

SCALE = 1000
"""The weight of a token of the prompt that the engine had to read."""

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
"""An answer's token weighs two of the prompt, as in VTC (OSDI 2024)."""
