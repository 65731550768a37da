"""Tests what random tokens stand for, and which make room."""

from collections import Counter
from dataclasses import dataclass

from hypothesis import given
from hypothesis import strategies as st

from slicewise.slurm_plugin.rules.common.bounded_tokens import BoundedTokens, token_key


@dataclass(frozen=True)
class Login:
    user: str
    until_s: float


def held(*logins: tuple[str, str, float], per_user: int = 2, most: int = 3) -> BoundedTokens[Login]:
    """Tokens that are added at second 0: each is its name, its user and its end."""
    tokens = BoundedTokens[Login](per_user, most)
    for name, user, until_s in logins:
        tokens.add(token_key(name), Login(user, until_s), 0.0)
    return tokens


def names(tokens: BoundedTokens[Login], now_s: float = 0.0) -> str:
    return "".join(name for name in "abcdefg" if tokens.find(token_key(name), now_s))


def test_a_token_is_found_until_its_end():
    tokens = held(("a", "alice", 5.0))
    assert (names(tokens, 4.9), names(tokens, 5.0)) == ("a", "")


def test_it_is_taken_once_and_ended():
    tokens = held(("a", "alice", 5.0), ("b", "alice", 5.0))
    assert tokens.take(token_key("a"), 1.0) == Login("alice", 5.0)
    assert tokens.take(token_key("a"), 1.0) is None
    tokens.end(token_key("b"))
    tokens.end(token_key("b"))
    assert names(tokens) == ""


def test_the_users_own_oldest_makes_room_before_any_other():
    assert names(held(("a", "bob", 5.0), *((name, "alice", 5.0) for name in "bcd"))) == "acd"


def test_of_all_users_together_the_oldest_makes_room():
    assert names(held(*((name, name, 5.0) for name in "abcd"))) == "bcd"


def test_what_has_ended_takes_no_room():
    tokens = held(("a", "alice", 1.0), ("b", "alice", 9.0))
    tokens.add(token_key("c"), Login("alice", 9.0), 2.0)
    assert names(tokens, 2.0) == "bc"


def test_what_replaces_another_pushes_nobody_out():
    tokens = held(("a", "alice", 5.0), ("b", "alice", 5.0), ("b", "alice", 7.0))
    assert (names(tokens), names(tokens, 6.0)) == ("ab", "b")


@given(st.lists(st.sampled_from(["alice", "bob", "carol"]), max_size=7))
def test_bounds_hold_and_the_newest_is_there(users: list[str]):
    logins = [(name, user, 5.0) for name, user in zip("abcdefg", users, strict=False)]
    found = names(held(*logins))
    of_user = Counter(user for name, user, _ in logins if name in found)
    assert len(found) <= 3
    assert all(count <= 2 for count in of_user.values())
    assert not logins or logins[-1][0] in found


def test_a_key_does_not_hold_its_token_and_any_text_has_one():
    assert b"secret" not in token_key("secret")
    assert len(token_key("\udc80")) == len(token_key("")) == 32
