"""A clock that a test sets."""


class Clock:
    """Tells ``now_s`` whenever it is asked for the time."""

    def __init__(self) -> None:
        self.now_s = 0.0

    def __call__(self) -> float:
        return self.now_s
