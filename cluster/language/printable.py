"""Makes text safe to show: nothing in it reaches the terminal as a command."""


def printable(text: str) -> str:
    """The text with each control character, which a terminal would obey, replaced by U+FFFD.

    Line breaks and tabs stay.
    """
    return "".join(
        letter if letter.isprintable() or letter in "\n\t" else "\ufffd" for letter in text
    )
