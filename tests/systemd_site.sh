#!/bin/bash
# systemd_site.sh: on a host of systemd_host.sh, Debian's own Slurm, munge and PostgreSQL under their own
# units, as a site has them before Slicewise. PostgreSQL listens on port 5499.
set -euo pipefail
clone=$(cd "$(dirname "$0")/.." && pwd)
as_slurm="setpriv --reuid slurm --regid slurm --clear-groups"

# slurmdbd's MariaDB, as the sandbox has it: Debian's own wants more packages.
install -d -o slurm /var/lib/accounting /run/mysqld
mariadbd="mariadbd --no-defaults --datadir=/var/lib/accounting --socket=/run/mysqld/mysqld.sock
    --skip-networking --innodb-buffer-pool-size=32M --innodb-log-file-size=16M
    --innodb-lock-wait-timeout=900 --innodb-flush-method=nosync"
cd "$clone"
.venv/bin/python -c 'from slicewise.sandbox.servers import mariadb; print(mariadb._bootstrap_sql("slurm"))' >/run/accounting.sql
cd /
# shellcheck disable=SC2086
$as_slurm $mariadbd --bootstrap </run/accounting.sql >/dev/null 2>&1
# shellcheck disable=SC2086
systemd-run --quiet --unit=accounting --property=User=slurm $mariadbd

install -m 600 -o slurm /dev/stdin /etc/slurm/slurmdbd.conf <<'CONF'
DbdHost=slicewise
SlurmUser=slurm
AuthType=auth/munge
StorageType=accounting_storage/mysql
StorageHost=localhost
StorageUser=slurm
StorageLoc=slurm_acct_db
CONF
cat >/etc/slurm/slurm.conf <<'CONF'
ClusterName=cluster
SlurmctldHost=slicewise
SlurmUser=slurm
StateSaveLocation=/var/spool/slurmctld
AuthType=auth/munge
SelectType=select/cons_tres
SelectTypeParameters=CR_Core_Memory
PriorityType=priority/multifactor
PreemptType=preempt/qos
PreemptMode=REQUEUE
RequeueExitHold=187
MpiParams=ports=21000-21999
ProctrackType=proctrack/linuxproc
AccountingStorageType=accounting_storage/slurmdbd
AccountingStorageHost=slicewise
AccountingStorageEnforce=associations,limits,qos
AccountingStorageTRES=gres/gpu,gres/gpu:1g.10gb
GresTypes=gpu
NodeName=n1 NodeAddr=slicewise CPUs=4 RealMemory=4000 Gres=gpu:1g.10gb:7
PartitionName=gpu Nodes=n1 Default=YES TRESBillingWeights="CPU=0,Mem=0,GRES/gpu:1g.10gb=1000"
CONF
install -d -o slurm /var/spool/slurmctld
install -d -o munge -m 700 /var/lib/munge /var/log/munge
systemctl start munge slurmdbd
until sacctmgr --noheader list cluster >/dev/null 2>&1; do sleep 0.2; done
sacctmgr --immediate --quiet add cluster cluster >/dev/null
sacctmgr --immediate --quiet add account vision >/dev/null
systemctl start slurmctld
until scontrol ping | grep -q 'is UP'; do sleep 0.2; done

version=$(basename "$(dirname "$(dirname "$(ls -d /usr/lib/postgresql/*/bin/postgres | tail -n 1)")")")
pg_createcluster "$version" ledger --port 5499 -- --no-sync >/dev/null
printf 'local all all peer\nhost all all 127.0.0.1/32 trust\n' >"/etc/postgresql/$version/ledger/pg_hba.conf"
systemctl start "postgresql@$version-ledger"
su postgres -c 'cd /; createuser -p 5499 slicewise; createuser -p 5499 slicewise_launcher; createdb -p 5499 -O slicewise slicewise'
