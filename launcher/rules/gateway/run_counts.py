"""What the engine of one run has counted, however often it started again within the run."""

from dataclasses import dataclass

from slicewise.launcher.rules.engines.load import EngineCounts, EngineLoad

MOST_COUNTED = 2**53 - 1
"""The largest count: readers of JSON keep it exact."""


@dataclass(frozen=True)
class RunCounts:
    """Tokens that a run's engine has counted, and those that it said last.

    Attributes:
        counts_cached: whether prompts count with what was found in a cache.
        seen_s: when the engine said them: what ended later they may lack.
    """

    prompt_tokens: int = 0
    output_tokens: int = 0
    last_prompt: int = 0
    last_output: int = 0
    counts_cached: bool = True
    seen_s: float = 0.0

    def later(self, load: EngineLoad, seen_s: float) -> "RunCounts":
        """Return them with what the engine said then; a counter that is lower began again."""
        now: EngineCounts = load.counts
        prompt = _whole(now.prompt_tokens, self.last_prompt)
        output = _whole(now.output_tokens, self.last_output)
        return RunCounts(
            min(self.prompt_tokens + _more(self.last_prompt, prompt), MOST_COUNTED),
            min(self.output_tokens + _more(self.last_output, output), MOST_COUNTED),
            prompt,
            output,
            load.counts_cached,
            seen_s,
        )


def _whole(count: float | None, before: int) -> int:
    return before if count is None else min(round(count), MOST_COUNTED)


def _more(before: int, now: int) -> int:
    return now - before if now >= before else now
