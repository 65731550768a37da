"""What a terminal shows of something that Rich prints."""

from typing import Any

from rich.console import Console


def printed_text(renderable: object, width: int = 200, **options: Any) -> str:
    console = Console(width=width, **options)
    with console.capture() as capture:
        console.print(renderable)
    return capture.get()
