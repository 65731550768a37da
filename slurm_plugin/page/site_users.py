"""Users whom others than the daemon name: a proxy, an OpenID provider."""

import asyncio
import pwd

from slicewise.cluster.language.codes import Code
from slicewise.cluster.language.errors import InvalidInputError
from slicewise.cluster.settings.file import Settings

_LONGEST = 64


class SiteUsers:
    """Users of this host who may log in by another's word.

    Root, SlurmUser and the users of launcher and web server may not: whoever can choose a name at a
    provider would see everything. Operators log in under names of their own, ``web.operators``.
    """

    def __init__(self, settings: Settings) -> None:
        self._realm = settings.web.realm
        daemon = settings.daemon
        self._programs = {daemon.slurm_user, daemon.launcher_user, settings.web.user}

    async def find(self, named: str) -> str:
        """Return the user's name as this host writes it.

        ``alice@REALM`` is alice where REALM is ``web.realm``. Raises InvalidInputError
        (SW-FORBIDDEN) for other realms, and for who is no user of this host who may log in so.
        """
        user = await self._named(named)
        if user is None or user.pw_uid == 0 or user.pw_name in self._programs:
            raise InvalidInputError(
                Code.FORBIDDEN,
                f"{named[:_LONGEST]!r} is no user of this host who may log in here.",
                "Operators log in under their own names: web.operators; realms: web.realm",
            )
        return user.pw_name

    async def has(self, named: str) -> bool:
        """Whether this host has such a user, also one who may not log in so."""
        return await self._named(named) is not None

    async def _named(self, named: str) -> pwd.struct_passwd | None:
        name, mark, realm = named.strip().partition("@")
        is_known = not mark or (bool(self._realm) and realm.lower() == self._realm.lower())
        # A thread: the host may ask a directory of users for it.
        return await asyncio.to_thread(_user, name) if is_known else None


def _user(name: str) -> pwd.struct_passwd | None:
    if not name.isprintable() or len(name) > _LONGEST:
        return None
    try:
        return pwd.getpwnam(name)
    except (KeyError, ValueError):
        return None
