"""Chats beside the load: OpenAI's own client asks a language model that sleeps at first."""

import asyncio
from dataclasses import dataclass, field
from typing import Protocol

import openai

from slicewise.sandbox.demo.load import Load
from slicewise.sandbox.demo.record import Chat
from slicewise.sandbox.demo.scenario import (
    CHAT,
    CHAT_AT_S,
    CHAT_PAUSE_S,
    CHAT_PROMPT,
    CHAT_TOKENS,
    CHATS,
    TenantPlan,
)
from slicewise.sandbox.demo.trace import Arrival


class Stage(Protocol):
    """What the chats see of the story, and tell it."""

    def costing(self, service: str) -> int:
        """How many slots of a service hold or ask for GPUs now."""
        ...

    def tell(self, news: str) -> None:
        """Show what happens now beside the load."""
        ...


@dataclass
class _Answer:
    """What has come of an answer."""

    first_token_at_s: float | None = None
    tokens: int = 0


@dataclass
class ChatPerformance:
    """The chats of one demo; ``perform`` is called once, when the replay begins.

    The client has the tenant's one address; the model's name there is the service's. It tries each
    chat once.

    Attributes:
        chats: those that have ended so far.
    """

    load: Load
    stage: Stage
    plan: TenantPlan = CHAT
    chats: list[Chat] = field(default_factory=list)

    async def perform(self) -> None:
        """Ask for one chat after the other."""
        await asyncio.sleep(CHAT_AT_S)
        client = openai.AsyncOpenAI(
            base_url=f"{self.load.gateway_url}/{self.plan.tenant}/v1",
            api_key="none",
            max_retries=0,
            timeout=self.load.timeout_s,
        )
        async with client:
            self.stage.tell(f"{self.plan.user} asks {self.plan.service}, which sleeps, for a chat")
            await self._chat(client)
            for _ in range(1, CHATS):
                await asyncio.sleep(CHAT_PAUSE_S)
                await self._chat(client)
        self.stage.tell(f"{self.plan.service} has answered {len(self.chats)} chats and may rest")

    async def _chat(self, client: openai.AsyncOpenAI) -> None:
        before, answer = self.stage.costing(self.plan.service), _Answer()
        arrival = Arrival(0.0, self.plan.service, len(CHAT_PROMPT), CHAT_TOKENS)
        request = await self.load.recorded(arrival, self._error(client, answer))
        at_s = answer.first_token_at_s
        first_s = None if at_s is None else at_s - request.due_s
        self.chats.append(Chat(request, first_s, answer.tokens, before))

    async def _error(self, client: openai.AsyncOpenAI, answer: _Answer) -> str:
        """Stream one chat; return "" if it was whole, else a short, countable error."""
        try:
            pieces = await client.chat.completions.create(
                model=self.plan.service_name,
                messages=[{"role": "user", "content": CHAT_PROMPT}],
                max_tokens=CHAT_TOKENS,
                stream=True,
                stream_options={"include_usage": True},
                # A model of random weights may end at any token.
                extra_body={"ignore_eos": True},
            )
            async for piece in pieces:
                if answer.first_token_at_s is None and piece.choices:
                    answer.first_token_at_s = self.load.elapsed_s
                if piece.usage is not None:
                    answer.tokens = piece.usage.completion_tokens
        except openai.APITimeoutError:
            return f"no answer in {self.load.timeout_s:g} s"
        except openai.APIStatusError as error:
            return f"status {error.status_code}"
        except openai.OpenAIError as error:
            return type(error).__name__
        return "" if answer.tokens == CHAT_TOKENS else "wrong number of tokens"
