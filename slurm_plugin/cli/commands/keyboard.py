"""Turns what a terminal sends into keys."""

from collections.abc import Iterator, Mapping

_NAMES: Mapping[str, str] = {
    "\r": "enter",
    "\n": "enter",
    "\t": "tab",
    "\x7f": "backspace",
    "\b": "backspace",
    "\x03": "interrupt",
    "\x04": "interrupt",
}
_SEQUENCES: Mapping[str, str] = {
    **{
        f"{start}{end}": name
        for start in ("[", "O")
        for end, name in (
            ("A", "up"),
            ("B", "down"),
            ("C", "right"),
            ("D", "left"),
            ("H", "home"),
            ("F", "end"),
        )
    },
    "[1~": "home",
    "[4~": "end",
    "[5~": "page-up",
    "[6~": "page-down",
    "[7~": "home",
    "[8~": "end",
    "[Z": "back-tab",
}
"""What follows ESC for keys that are no characters, as terminals of xterm's kind send it."""
_LONGEST = 16


class Keyboard:
    """Keeps what has come of a sequence until the rest comes."""

    def __init__(self) -> None:
        self._begun = ""

    def keys(self, sent: bytes) -> Iterator[str]:
        """Yield the keys in what was sent: characters, and names of other keys.

        Sequences that are not known are left out, so that no part of one counts as characters.
        """
        for char in sent.decode("utf-8", "ignore"):
            if self._begun:
                yield from self._followed(char)
            elif char == "\x1b":
                self._begun = char
            else:
                yield _NAMES.get(char, char)

    def rest(self) -> str | None:
        """Return ``escape`` if nothing has followed an ESC; to be called when nothing comes."""
        is_alone, self._begun = self._begun == "\x1b", ""
        return "escape" if is_alone else None

    def _followed(self, char: str) -> Iterator[str]:
        self._begun += char
        sequence = self._begun[1:]
        if char == "\x1b":
            self._begun = char
            yield "escape"
        elif sequence[0] not in "[O":
            self._begun = ""
            yield "escape"
            yield _NAMES.get(char, char)
        elif len(sequence) > 1 and (char.isalpha() or char == "~" or len(sequence) > _LONGEST):
            self._begun = ""
            if (name := _SEQUENCES.get(sequence)) is not None:
                yield name
