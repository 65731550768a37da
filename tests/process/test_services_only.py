"""Checks, at night, the commands of docs/how-to/services-only.md, with Debian's own Slurm."""

import sys
from pathlib import Path

import pytest
from installed_wheel import ROOT
from package_life import booted, packed

ANSWERS = """
partitions = ["gpu"]
database_url = "postgresql://slicewise@127.0.0.1:5499/slicewise"
"""
STATE = r"""
# state: all that Slurm says of itself and of others, but what moves by itself.
state() {
    sacctmgr dump cluster file=/run/dump.cfg >/dev/null 2>&1; cat /run/dump.cfg /etc/slurm/*.conf
    sacctmgr -nP show qos; sacctmgr -nP show assoc
    scontrol show config | grep -vE 'Configuration data|BOOT_TIME|NEXT_JOB_ID|HASH_VAL|Slurmctld\('
    scontrol -o show partition; scontrol -o show reservation
    scontrol -o show node | grep -oE '(NodeName|Gres|CfgTRES|Weight|Partitions|Comment)=[^ ]*'
    for job in $(cat /run/jobs); do
        scontrol -o show job $job | tr ' ' '\n' \
            | grep -vE 'RunTime|LastSchedEval|SchedNodeList|^StartTime|^EndTime|Reason'
    done
    sprio -h -o '%i %Q %S %T'
}
"""
SITE = r"""
ROOT/tests/systemd_site.sh
sed -i 's/^MpiParams.*/&\nSlurmdParameters=config_overrides/' /etc/slurm/slurm.conf
mkdir -p /srv/dev /srv/bin /srv/models/chat/chat /var/spool/slurmd
for gpu in 0 1 2 3 4 5 6; do touch /srv/dev/gpu$gpu; done
printf 'AutoDetect=off\nName=gpu Type=1g.10gb File=/srv/dev/gpu[0-6]\n' > /etc/slurm/gres.conf
useradd -m -s /bin/bash alice; useradd -m -s /bin/bash carol
sacctmgr -i -Q add user alice,carol account=vision >/dev/null
systemctl restart slurmctld; until scontrol ping | grep -q 'is UP'; do sleep 0.2; done
systemd-run --quiet --unit=slurmd-n1 /usr/sbin/slurmd -D -N n1
until sinfo -h -o %T | grep -q idle; do sleep 0.3; done
(cd ROOT; .venv/bin/python -c '
from pathlib import Path
from slicewise.sandbox.servers.llamacpp import stage
from slicewise.sandbox.servers.tiny_gguf import write_tiny_model
stage(Path("/srv/bin"), Path("/srv/llamacpp"), Path("/usr/bin/python3"))
write_tiny_model(Path("/srv/models/chat/chat/chat.gguf"))
'); chmod -R a+rX /srv
# Of others one job runs, one waits for GPUs, one for its time.
cat > /run/submit <<'END'
cd; job() { sbatch --parsable --mem=10 --output=/dev/null --wrap 'sleep 3600' "$@"; }
job --time=60 --gres=gpu:1g.10gb:1
job --time=60 --gres=gpu:1g.10gb:7
job --time=7 --gres=gpu:1g.10gb:1 --begin=now+2hours
END
su carol -c 'bash /run/submit' > /run/jobs
until squeue -h -t R | grep -q .; do sleep 0.2; done
sleep 2
state > /run/before; sinfo -h -o %T
"""
TOOK = 'at() { echo; echo "at $(date +%s)"; }\n'
_ACTIVE = "systemctl is-active slicewise-daemon slicewise-launcher haproxy | sort -u"
STEPS = {
    "site": f"{STATE}{TOOK}{SITE.replace('ROOT', str(ROOT))}",
    "install": "at; dpkg -i /run/packages/*_0.1.0-*.deb",
    "setup": "at; cd /root; slicewise setup --services-only --answers /run/packages/answers.toml"
    "; cat slicewise-setup/STEPS.md",
    "edit": r"printf '\n[engines.llamacpp]\ncommand = \"/srv/bin/llama-server\"\n'"
    " >> slicewise-setup/slicewise.toml",
    "services": f"at; sh slicewise-setup/services.sh; {_ACTIVE}",
    "quota": "at; slicewise tenant-quota set vision --nominal 3",
    "key": "at; su alice -c 'slicewise key create vision --name me' > /run/key",
    "init": "at; su alice -c 'cd; slicewise service init /srv/models/chat --tenant vision'",
    "apply": "at; su alice -c 'cd; slicewise service apply chat.toml --start'",
    "ask": "at; key=$(grep -oE 'swk_[A-Za-z0-9_-]+' /run/key | head -1)"
    '; curl -s -H "Authorization: Bearer $key" -H "Content-Type: application/json"'
    " http://127.0.0.1:8080/vision/v1/chat/completions"
    """ -d '{"model": "chat", "messages": [{"role": "user", "content": "hello"}]"""
    """, "max_tokens": 8}'""",
    "answered": "at",
    "again": f"sh slicewise-setup/services.sh; {_ACTIVE}",
    "scale": "su alice -c 'slicewise service scale chat --min 2'"
    "; until [ $(squeue -h -r -n chat -t R | wc -l) = 2 ]; do sleep 0.5; done"
    "; su alice -c 'slicewise service scale chat --min 0'"
    "; squeue -r -o '%i %u %T %r %q'; slicewise overview",
    "delete": "su alice -c 'slicewise service delete chat'"
    "; while squeue -h -n chat | grep -q .; do sleep 0.5; done; squeue -o '%i %u %T %r'",
    "same": "state > /run/after; diff /run/before /run/after && echo equal",
    "charged": "slicewise ledger statement vision",
    "log": "journalctl --unit=slicewise-daemon --no-pager | tail -30; slicewise doctor | tail -60",
}


@pytest.mark.nightly
def test_services_alone_come_up_by_the_commands_of_the_guide(tmp_path: Path) -> None:
    """And Slurm, with all that is not theirs, stays as it is."""
    packed("deb", tmp_path)
    (tmp_path / "answers.toml").write_text(ANSWERS)
    said = booted(STEPS, tmp_path)
    assert said["site"].splitlines()[-1] == "mixed", said["site"]
    assert said["services"].splitlines()[-1] == "active", said["services"]
    assert '"choices"' in said["ask"], said
    assert said["again"].splitlines()[-1] == "active", said["again"]
    assert said["same"] == "equal", said
    begun, answered = (
        int(said[step].split("at ")[1].split()[0]) for step in ("install", "answered")
    )
    sys.stdout.write(f"from packages to an answer: {answered - begun} s\n")
