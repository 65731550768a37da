"""What a reader raises that can't answer, so that the commands do."""

FAILED_REST_S = 5.0
"""Seconds after a failure that may be over soon."""
UNFIT_REST_S = 600.0
"""Seconds after which a reader that does not fit the running Slurm is tried again."""


class ReaderError(Exception):
    """The reader can't answer; for the next ``rest_s`` seconds it is not worth asking again."""

    def __init__(self, why: str, rest_s: float = FAILED_REST_S) -> None:
        super().__init__(why)
        self.rest_s = rest_s
