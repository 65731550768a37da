"""Tests finding the streams of API keys, as HAProxy 2.6 shows them."""

from slicewise.launcher.gateway.streams import end_commands, key_ages_s, without_key

KEPT, REVOKED = "a" * 64, "b" * 64
TABLE = f"""# table: streams, type: string, size:102400, used:3
0x7f01: key={KEPT}/12 use=1 exp=9985 shard=0 conn_cur=1
0x7f02: key={REVOKED}/13 use=1 exp=9985 shard=0 conn_cur=1
0x7f03: key={REVOKED}/112 use=1 exp=9985 shard=0 conn_cur=1
"""
SESSIONS = """0x55f1: [23/Nov/2026:07:30:21.123456] id=12 proto=tcpv4 source=127.0.0.1:4242
  flags=0xcce, conn_retries=0, conn_exp=<NEVER> conn_et=0x000 srv_conn=0x55f0, pend_pos=(nil)
  frontend=gateway (id=3 mode=http), listener=? (id=1) addr=127.0.0.1:8080
0x55f2: [23/Nov/2026:07:30:22.123456] id=13 proto=tcpv4 source=127.0.0.1:4242
  txn=0x55f9 flags=0x83000 meth=3 status=200 req.st=MSG_DATA rsp.st=MSG_DATA
0x55f3: [23/Nov/2026:07:30:23.123456] id=113 proto=unix_stream source=unix:1
"""


def test_only_streams_without_a_living_key_are_found() -> None:
    assert without_key(TABLE, {KEPT}) == {13, 112}
    assert without_key(TABLE, {KEPT, REVOKED}) == frozenset()
    assert without_key("No such table\n", ()) == frozenset()


def test_the_last_use_of_a_key_was_noted_lately_or_goes_on() -> None:
    used = {KEPT: "1000", REVOKED: "1015", "c" * 64: "890", "d" * 64: "1100"}
    assert key_ages_s(used, "", 1020.0) == {KEPT: 20.0, REVOKED: 5.0, "d" * 64: 0.0}
    assert key_ages_s({}, TABLE, 1020.0) == {KEPT: 0.0, REVOKED: 0.0}
    assert key_ages_s({"e" * 64: "1000"}, "No such table\n", 1020.0) == {"e" * 64: 20.0}


def test_only_their_requests_are_ended() -> None:
    assert list(end_commands(SESSIONS, {13, 112})) == ["shutdown session 0x55f2"]
