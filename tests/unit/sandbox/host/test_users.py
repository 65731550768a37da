from pathlib import Path

from slicewise.sandbox.host.users import (
    User,
    group_text,
    one_user,
    own_uids,
    passwd_text,
    several_users,
)

SLURM = User("slurm", 64030, 64030)
SYSTEM = "root:x:0:0:root:/root:/bin/bash\nalice:x:1000:1000::/home/alice:/bin/sh\n"


def test_two_slots_share_no_user_id():
    assert set(own_uids(1)).isdisjoint(own_uids(2))


def test_no_slot_reaches_nobody_or_the_ids_of_people():
    assert all(60999 < uid < 65534 for slot in range(1, 251) for uid in own_uids(slot))


def test_several_users_are_all_different():
    users = several_users(3, SLURM)
    assert len({user.uid for user in users.values()}) == len(users) == 7


def test_one_user_plays_every_role():
    me = User("me", 1000, 1000)
    assert set(one_user(me).values()) == {me}


def test_our_users_replace_the_machine_s_of_the_same_name():
    text = passwd_text(SYSTEM, several_users(1, SLURM), Path("/s/home"))
    alices = [line for line in text.splitlines() if line.startswith("alice:")]
    uid = several_users(1, SLURM)["alice"].uid
    assert alices == [f"alice:x:{uid}:{uid}::/s/home/alice:/bin/bash"]


def test_an_entry_of_the_same_id_goes_too():
    text = passwd_text("other:x:64030:1::/:/bin/sh\n", {"slurm": SLURM}, Path("/h"))
    assert text == "slurm:x:64030:64030::/h/slurm:/bin/bash\n"


def test_a_user_whose_group_is_not_its_own_makes_no_group():
    text = group_text("users:x:100:\n", one_user(User("me", 1000, 100)))
    assert text == "users:x:100:\n"
