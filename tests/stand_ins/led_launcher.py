"""A launcher, or a daemon, that may stop leading."""

from typing import Any

from slicewise.cluster.language.errors import UnreachableError

DOWN = UnreachableError("SW-DATABASE-DOWN", "down")


class Switch:
    """A leader, by assignment; ``code`` is that of its refusal while it does not lead."""

    def __init__(self, code: str = "SW-LOCK") -> None:
        self.led = False
        self._code = code

    def leads(self) -> bool:
        return self.led

    def require(self) -> None:
        if not self.led:
            raise UnreachableError(self._code, "no")


class World:
    """A daemon and a gateway that only remember that they were asked."""

    def __init__(self) -> None:
        self.asked: list[str] = []

    def __getattr__(self, name: str) -> Any:
        async def call(*_: object) -> None:
            self.asked.append(name)
            raise DOWN

        return call
