"""A launcher that may stop leading."""

from typing import Any

from cluster.language.errors import UnreachableError

DOWN = UnreachableError("SW-DATABASE-DOWN", "down")


class Switch:
    """A leader, by assignment."""

    def __init__(self) -> None:
        self.led = False

    def leads(self) -> bool:
        return self.led

    def require(self) -> None:
        if not self.led:
            raise UnreachableError("SW-LOCK", "no")


class World:
    """A daemon and a gateway that only remember that they were asked."""

    def __init__(self) -> None:
        self.asked: list[str] = []

    def __getattr__(self, name: str) -> Any:
        async def call(*_: object) -> None:
            self.asked.append(name)
            raise DOWN

        return call
