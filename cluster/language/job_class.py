"""The classes of priority that a job can have."""

from typing import Literal

JobClass = Literal["low", "normal", "high"]
