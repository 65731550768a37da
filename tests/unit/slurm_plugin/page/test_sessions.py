"""Tests who is logged in, and for how long."""

import pytest
from stand_ins.clock import Clock

from slicewise.slurm_plugin.page.sessions import Sessions


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def sessions(clock: Clock) -> Sessions:
    return Sessions(7200.0, clock)


def test_a_session_is_found_by_its_cookie_until_it_ends(sessions: Sessions, clock: Clock):
    cookie, session = sessions.begin("alice")
    assert sessions.find(cookie) == session
    assert sessions.find(cookie + "x") is None
    clock.now_s = 7200.0
    assert sessions.find(cookie) is None
    assert not sessions.is_open(session)


def test_who_logs_out_is_logged_out(sessions: Sessions):
    cookie, session = sessions.begin("alice")
    sessions.end(session)
    assert sessions.find(cookie) is None
    assert not sessions.is_open(session)


def test_the_server_keeps_no_cookie(sessions: Sessions):
    cookie, session = sessions.begin("alice")
    assert cookie.encode() not in session.key
    assert cookie != session.form_token


def test_a_users_oldest_session_makes_room_and_no_others(sessions: Sessions):
    other, _ = sessions.begin("bob")
    first, _ = sessions.begin("alice")
    later = [sessions.begin("alice")[0] for _ in range(16)]
    assert sessions.find(first) is None
    assert sessions.find(other) is not None
    assert all(sessions.find(one) for one in later)


def test_a_proxys_word_holds_for_an_hour_and_keeps_the_forms(sessions: Sessions, clock: Clock):
    first = sessions.vouched("alice")
    assert sessions.find("proxy:alice") is None
    clock.now_s = 3599.0
    assert sessions.is_open(first)
    again = sessions.vouched("alice")
    assert again.form_token == first.form_token
    clock.now_s = 3600.0
    assert not sessions.is_open(first)
    assert sessions.is_open(again)
    assert sessions.vouched("bob").form_token != again.form_token


def test_a_session_of_one_request_follows_nothing(sessions: Sessions):
    assert not sessions.is_open(sessions.passing("alice"))
