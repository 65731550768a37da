"""Puts the tests of this folder under guard."""

from guard import *  # noqa: F403
