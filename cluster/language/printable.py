"""Makes text safe to show: nothing in it reaches the terminal as a command."""


def printable(text: str) -> str:
    """The text with each control character, which a terminal would obey, replaced by U+FFFD.

    Line breaks and tabs stay.
    """
    return "".join(one if one.isprintable() or one in "\n\t" else "\ufffd" for one in text)
