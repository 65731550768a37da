"""The table of error codes: one for each remedy, so for each thing that a reader can do.

Messages name the key, the number or the file in question; the code says which kind of remedy that
needs. docs/reference/errors.md is made from this table, and every refusal, failure and finding has
its code from here.
"""

from collections.abc import Mapping
from enum import StrEnum
from typing import Self

from slicewise.cluster.language.exit_codes import ExitCode


class Area(StrEnum):
    """Where a code occurs; the values are the headings of its page."""

    JOBS = "Submitting and changing a job or a service"
    COMMANDS = "Any command"
    LEDGER = "Quotas and ledger"
    SERVERS = "The daemon, the launcher and the page"
    CLIENTS = "What the gateway tells clients"
    GATEWAY = "Running the gateway"
    GPUS = "GPUs, MIG and repartitioning"
    SITE = "What doctor, compile and the overview find"
    SANDBOX = "Sandbox and demo"


class Code(StrEnum):
    """An error code: stable, the same for each failure that is mended in the same way.

    Attributes:
        area: where it occurs.
        exit_code: of a command that it ends. A finding ends none, nor does what clients get.
        happened: what happened, or what is wrong; Markdown, as ``remedy``.
        remedy: what the reader does about it.
    """

    area: Area
    exit_code: ExitCode
    happened: str
    remedy: str

    def __new__(cls, code: str, area: Area, exit_code: ExitCode, text: str) -> Self:
        """Return the member for ``code``; ``text`` has what happened, then the remedy."""
        member = str.__new__(cls, code)
        member._value_ = code
        member.area, member.exit_code = area, exit_code
        parts = text.split("\n\n")
        member.happened, member.remedy = (" ".join(part.split()) for part in parts)
        return member

    @classmethod
    def __get_pydantic_json_schema__(cls, _core: object, _handler: object) -> dict[str, str]:
        """For readers of JSON it is text: new codes come with new versions."""
        return {"type": "string"}

    # fmt: off

    DIRECTIVE = ("SW-DIRECTIVE", Area.JOBS, ExitCode.REFUSED, """
        A `#SLICEWISE` line is not `#SLICEWISE key=value`, is above 2048 bytes, or has a value that
        is not allowed or has a simpler form.

        Write it as the message says, without blanks; or let `slicewise service render FILE` write
        it.
        """)
    SERVICE = ("SW-SERVICE", Area.JOBS, ExitCode.REFUSED, """
        The service file can't be read, a key of the service is wrong, missing or not for its engine
        or model, or its script asks for something else: another partition, account, array or other
        GPUs.

        Correct what the message names. `slicewise service schema` explains the keys, with
        `--example` it prints a file that works.
        """)
    SERVICE_MODEL = ("SW-SERVICE-MODEL", Area.JOBS, ExitCode.REFUSED, """
        On this host the model or the image is not there, or the model or another directory of its
        repository can't be loaded.

        Correct all that is named. If only the nodes see the path, or the engine knows more than
        Slicewise: `--skip-model-check`.
        """)
    SERVICE_ENGINE = ("SW-SERVICE-ENGINE", Area.JOBS, ExitCode.REFUSED, """
        There is no such `engine`, the site's own can't be loaded, or slicewise.toml does not say
        how it starts.

        Take one of the hint. Operator: install its package where you run slicewise, the launcher's
        host included; add `[engines.NAME]`.
        """)
    SERVICE_EXISTS = ("SW-SERVICE-EXISTS", Area.JOBS, ExitCode.CONFLICT, """
        The tenant has a living service of that name that another user submitted, or submitted in
        the last seconds.

        Choose another name. Your own service: apply it again, it rolls over.
        """)
    SERVICE_PLACES = ("SW-SERVICE-PLACES", Area.JOBS, ExitCode.CONFLICT, """
        The gateway has no place for one more service of this tenant; an idle one holds a place,
        too.

        Delete a service that is not used. Operator: raise `gateway.services` or
        `gateway.services_per_tenant`, render, reload HAProxy, restart daemon and launcher.
        """)
    SERVICE_ENDING = ("SW-SERVICE-ENDING", Area.JOBS, ExitCode.BUSY, """
        Earlier arrays of the service have not ended: it is being deleted, or 16 generations are
        there.

        Try again when `slicewise service list` shows them no more; or end them: `slicewise service
        delete NAME --now`, `scancel`.
        """)
    SERVICE_UNKNOWN = ("SW-SERVICE-UNKNOWN", Area.JOBS, ExitCode.NOT_FOUND, """
        You may see no service of that name, or the array is no service in Slurm's queue.

        `slicewise service list` shows your services and those of your accounts.
        """)
    SERVICE_FAILING = ("SW-SERVICE-FAILING", Area.JOBS, ExitCode.FAILED, """
        A service will not get ready: three starts in a row failed, or its generation has ended.

        See `slicewise service status NAME` and `slicewise service logs NAME`; mend the model or the
        file, apply again.
        """)
    SERVICE_CHANGED = ("SW-SERVICE-CHANGED", Area.JOBS, ExitCode.BUSY, """
        A request of the launcher's for slots or for a generation's end no longer fits what is
        there. Nothing was changed.

        Nothing: the launcher decides again. Owners end a generation by `scancel`.
        """)
    QUOTA_NONE = ("SW-QUOTA-NONE", Area.JOBS, ExitCode.NOT_FOUND, """
        The account has no quota, so it may use no GPU; or it never was a tenant.

        Check the name. Operator: `slicewise tenant-quota set ACCOUNT --nominal N`.
        """)
    QUOTA_BORROW = ("SW-QUOTA-BORROW", Area.JOBS, ExitCode.CONFLICT, """
        A job names the borrowed QOS of a tenant that may not borrow.

        Leave out `--qos`. Operator: `slicewise tenant-quota set TENANT --borrowing-limit N`.
        """)
    QUOTA_EXCEEDED = ("SW-QUOTA-EXCEEDED", Area.JOBS, ExitCode.CONFLICT, """
        One task, with all of its nodes, costs more than its tenant could ever hold, or has more
        instances of a type: it could never start. What is only too much now is accepted and waits.
        For GPUs of whole nodes that a job does not name, nothing is lent.

        Ask for fewer or smaller GPUs, or the operator for a larger quota.
        """)
    BUDGET_EXCEEDED = ("SW-BUDGET-EXCEEDED", Area.JOBS, ExitCode.CONFLICT, """
        One task could use up more, in its time limit or `lease_s`, than its budget has in a period.

        Write a shorter `--time` or `lease_s` (the hint says how long), ask for less, or ask the
        operator for a larger budget.
        """)
    TENANT_UNKNOWN = ("SW-TENANT-UNKNOWN", Area.JOBS, ExitCode.NOT_FOUND, """
        The account is not among yours in Slurm; or the ledger or Slurm has no tenant or account of
        that name, or none that you may see.

        Take one of the hint. A new association counts within seconds. New tenants: `sacctmgr add
        account NAME cluster=CLUSTER`, then `slicewise tenant create NAME`.
        """)
    CLASS_FORBIDDEN = ("SW-CLASS-FORBIDDEN", Area.JOBS, ExitCode.NOT_PERMITTED, """
        `class=high` for a tenant whose jobs may not be of that class.

        Write `class=normal`. Operator: `[priority] high_class_for`.
        """)
    QOS = ("SW-QOS", Area.JOBS, ExitCode.NOT_PERMITTED, """
        The job names another tenant's QOS, or one of `[qos]` that its user may not use there.

        Leave out `--qos`, or name your own: `sacctmgr show assoc user=$USER format=account,qos`.
        """)
    GRES = ("SW-GRES", Area.JOBS, ExitCode.REFUSED, """
        GPUs are asked for without a type, in another form than `gpu:TYPE:COUNT`, or are shared ones
        (shard, mps) without a price.

        Write `--gres=gpu:TYPE:N` with a type of the hint, once. Operators: [GPUs that jobs
        share](mig.md#gpus-that-jobs-share).
        """)
    PROFILE_UNKNOWN = ("SW-PROFILE-UNKNOWN", Area.JOBS, ExitCode.REFUSED, """
        No node has GPUs of that type, or slicewise.toml does not list it.

        Take a type of the hint. Operator: if nodes have it, add it to `types` under its GPU model
        and restart the daemon.
        """)
    NEED_TOO_LARGE = ("SW-NEED-TOO-LARGE", Area.JOBS, ExitCode.REFUSED, """
        No type that the tenant may have, or not the one named, has the memory of `need_gib` or
        `need=`.

        Ask for less, or name a `profile`.
        """)
    WITHOUT_GPU = ("SW-WITHOUT-GPU", Area.JOBS, ExitCode.REFUSED, """
        A job that may run in a managed partition asks for no GPU, or for 0 of them.

        Ask for GPUs, or name a partition that Slicewise does not manage. Operators: `[admission]
        without_gpu` ([install](../how-to/install.md#jobs-that-keep-gpus-from-others)).
        """)
    SHARE = ("SW-SHARE", Area.JOBS, ExitCode.REFUSED, """
        The job asks for more CPUs or memory than the share of its GPUs, or for whole cores' CPUs or
        all memory of a node.

        Ask for less, or for more GPUs. Operators: `[admission] cpus_per_slice`,
        `memory_gib_per_slice`.
        """)
    JOB_OPTION = ("SW-JOB-OPTION", Area.JOBS, ExitCode.REFUSED, """
        An option that no limit could count, or that slurmctld can't take: `--exclusive=user`,
        `--nodes=0-N`, GPUs in a partition that shares a managed one's nodes, a text above 1024
        bytes.

        Leave it out, or write it as the message says.
        """)
    RESUBMIT = ("SW-RESUBMIT", Area.JOBS, ExitCode.NOT_PERMITTED, """
        A user wanted to change of a job what only root and SlurmUser may, or to bring one that was
        not admitted to GPUs of a managed partition; or a job of a time without the daemon can't be
        decided. Slurm 22.05 shows "Access/permission denied" only; slurmctld's log names the field.

        Cancel the job and submit it again as it should be. A service's slots start by requests or
        `min_replicas`.
        """)
    RATE = ("SW-RATE", Area.JOBS, ExitCode.BUSY, """
        A user has changed services and keys 60 times in a row, or submitted services as often, or
        a tenant's users have changed them 240 times.

        Wait as long as the message says. Operators are not limited, nor is `key delete`.
        """)
    KEY_REVOKE = ("SW-KEY-REVOKE", Area.JOBS, ExitCode.CONFLICT, """
        The person has 100 valid API keys of the tenant, or the tenant 1,000; or it can't be opened
        to everybody while it has any.

        `slicewise key list`, then `slicewise key delete KEY_ID`.
        """)
    KEY_TWICE = ("SW-KEY-TWICE", Area.JOBS, ExitCode.BUSY, """
        An API key with that id or hash is there already.

        Try again: the command makes another.
        """)
    KEY_FIRST = ("SW-KEY-FIRST", Area.JOBS, ExitCode.CONFLICT, """
        It would be the tenant's first API key: from then on all of its services refuse requests
        without one, also those that clients use now.

        On the page, mark that this is meant. A marketplace's orders and guests never close
        services: `slicewise key require` sets a date first.
        """)
    WAITING = ("SW-WAITING", Area.JOBS, ExitCode.FAILED, """
        Jobs within their tenant's guaranteed quota have waited for longer than `lending.grace_s`
        and a minute, or had quota and did not start for another reason, or the launcher wants more
        replicas than the quota lets start.

        `slicewise why JOB` or `slicewise why SERVICE` says for what, and who holds it.
        """)

    USAGE = ("SW-USAGE", Area.COMMANDS, ExitCode.REFUSED, """
        An option, an argument or an answer is wrong or missing, or there are several to choose
        from.

        Give it as the message says; the hint has the choices. `-h` shows what the command takes.
        """)
    VALUE = ("SW-VALUE", Area.COMMANDS, ExitCode.REFUSED, """
        An amount, a time, a name, a reason or another value has the wrong form or is out of range.
        Nothing was changed.

        Write it as the message says.
        """)
    NAME_UNKNOWN = ("SW-NAME-UNKNOWN", Area.COMMANDS, ExitCode.NOT_FOUND, """
        Nothing has the name, the id or the address that was given.

        Take one from the list that the hint names: `squeue`, `sacct`, `sinfo`, `slicewise ... list`
        or `history`.
        """)
    NOTHING = ("SW-NOTHING", Area.COMMANDS, ExitCode.NOT_FOUND, """
        There is nothing to show, finish or close: no log, no priority, no uninstall under way, or
        the repartition is not stuck.

        Ask what the hint names, such as `slicewise why JOB` or `slicewise service status NAME`.
        """)
    INPUT_FILE = ("SW-INPUT-FILE", Area.COMMANDS, ExitCode.REFUSED, """
        A file to read is not there, is no such file, is too large, or something in it is wrong;
        file, place and why are named. Nothing was changed.

        Correct it. Formats: [cluster files](cluster-file.md), [past jobs](history-files.md),
        `slicewise tenant-quota apply --example`; archives are read by their own version or a later
        one.
        """)
    OUTPUT = ("SW-OUTPUT", Area.COMMANDS, ExitCode.REFUSED, """
        A file or directory can't be written, is a device or a pipe, has no room, or is in use for
        something else. What was there is as before.

        Name another that you may write and that has room; for a service's logs, be in a directory
        that the nodes see, too.
        """)
    PROGRAM = ("SW-PROGRAM", Area.COMMANDS, ExitCode.NOT_FOUND, """
        A program, library or package that is needed is not on this host or node, is not whole, does
        not fit, or may not be run by the users who need it.

        Install what the message names, or run the line of the hint.
        """)
    SETTINGS = ("SW-SETTINGS", Area.COMMANDS, ExitCode.REFUSED, """
        slicewise.toml is missing, can't be read, or has a key that is wrong, that does not fit
        another, or that HAProxy or this host can't take; file and key are named. Or no database is
        configured, or its URL can't be read; it is not shown, for it may hold a password.

        Correct it after [etc/slicewise.toml](../../etc/slicewise.toml); `SLICEWISE_CONFIG` names
        another file. The database: `SLICEWISE_DATABASE_URL` or `[database] url_file`, in a password
        `@` is `%40` and `/` is `%2F`; tenants' commands such as `slicewise why` need none.
        """)
    ABORTED = ("SW-ABORTED", Area.COMMANDS, ExitCode.FAILED, """
        A command wants a confirmation and can't ask for it. Nothing was done.

        Answer it beforehand: `--yes`.
        """)
    TIMEOUT = ("SW-TIMEOUT", Area.COMMANDS, ExitCode.TIMED_OUT, """
        What the command waited for had not happened in time, or was not answered; what was begun
        goes on by itself.

        The message says how it stands. Look again later, or wait longer.
        """)
    MODE = ("SW-MODE", Area.COMMANDS, ExitCode.CONFLICT, """
        The daemon's mode is observe or advise, in which Slicewise sets no limits in Slurm.

        Set `mode = "enforce"`, or preview with `--dry-run`.
        """)
    ROOT = ("SW-ROOT", Area.COMMANDS, ExitCode.NOT_PERMITTED, """
        The command needs root, or this user can't read what is to be checked.

        Run it as root, on the host that the message names.
        """)
    SLURM_DOWN = ("SW-SLURM-DOWN", Area.COMMANDS, ExitCode.UNREACHABLE, """
        slurmctld or slurmdbd gave no answer within 10 s (sbatch: 60 s).

        `scontrol ping`, `sacctmgr show cluster`. After sbatch, look first whether the job is there.
        """)
    SLURM_FAILED = ("SW-SLURM-FAILED", Area.COMMANDS, ExitCode.FAILED, """
        A command of Slurm failed or refused, is not on PATH, or printed what can't be read.

        Follow Slurm's words, and a code among them. What can't be read, report with `scontrol
        version`.
        """)
    LOCK = ("SW-LOCK", Area.COMMANDS, ExitCode.BUSY, """
        Another run, or another launcher, has the lock, or PostgreSQL let go of it: this one stopped
        where it was.

        Nothing: the next run goes on. What was not done is for after the other run, such as
        `slicewise repartition close ID`.
        """)

    QUOTA_CAPACITY = ("SW-QUOTA-CAPACITY", Area.LEDGER, ExitCode.CONFLICT, """
        All nominals together are more than the cluster's GPUs, of which nodes may have gone, or
        guarantee more instances of a type than there are.

        Give less, bring the nodes back, or have GPUs cut into more of the type; or `--overcommit`,
        if that is meant.
        """)
    QUOTA_TREE = ("SW-QUOTA-TREE", Area.LEDGER, ExitCode.CONFLICT, """
        A tenant's nominal, now or by a window, would be less than those below it have together.

        Raise the one above first, or lower those below; 0, or `none` of a type, is what they have.
        """)
    TENANT_CHILDREN = ("SW-TENANT-CHILDREN", Area.LEDGER, ExitCode.CONFLICT, """
        Tenants are below that one, so it can't go, nor be moved below itself.

        Move them first with `slicewise tenant move NAME --parent OTHER`, or delete them with
        `slicewise tenant delete NAME`.
        """)
    TENANT_IMPORT = ("SW-TENANT-IMPORT", Area.LEDGER, ExitCode.PARTLY_DONE, """
        `tenant import`: some accounts can't be taken over. All others are.

        Mend what the table says, such as a name or a quota above, and import again.
        """)
    TENANT_ACCOUNTS = ("SW-TENANT-ACCOUNTS", Area.LEDGER, ExitCode.FAILED, """
        Tenants and Slurm's accounts do not fit: no account, another place in the tree, or a name
        that can't be used.

        `sacctmgr add account NAME cluster=CLUSTER`, `slicewise tenant import` or `slicewise tenant
        delete`; a name that can't be used, delete or change.
        """)
    BUDGET_NONE = ("SW-BUDGET-NONE", Area.LEDGER, ExitCode.NOT_FOUND, """
        The tenant has no budget of its own, so it can't be shown, granted or changed in parts.

        `slicewise budget set NAME --period month --amount SLICE_HOURS`. Who pays instead:
        `slicewise tenant show NAME`.
        """)
    BUDGET_KEY = ("SW-BUDGET-KEY", Area.LEDGER, ExitCode.CONFLICT, """
        The `--key` of a grant or an adjustment is of another entry. Nothing was booked.

        Give each entry a key of its own.
        """)
    BUDGET_LOW = ("SW-BUDGET-LOW", Area.LEDGER, ExitCode.FAILED, """
        A budget and its overdraft are used up, or end before the period does as jobs use it now. Or
        of a budget in money the part is used of which the tariff warns: nothing ends for it.

        `slicewise budget grant TENANT --amount SLICE_HOURS --reason WHY`, or fewer jobs. Of money
        `slicewise ledger invoice --tenant TENANT --by service` says for what.
        """)
    CLUSTER_NAME = ("SW-CLUSTER-NAME", Area.LEDGER, ExitCode.REFUSED, """
        `[cluster] name` is not slurmctld's ClusterName. Nothing was changed.

        Write the name that the message says, and start the daemon again.
        """)
    LIMITS_UNSETTLED = ("SW-LIMITS-UNSETTLED", Area.LEDGER, ExitCode.PARTLY_DONE, """
        Slurm refused a tenant's limit, or shows another than the ledger's. All others are set; new
        quotas are not reported as in force meanwhile.

        The daemon goes on trying; if it lasts, find who changes them: `sacctmgr show assoc`,
        `sacctmgr show qos`, slurmdbd's log.
        """)
    UNINSTALLED = ("SW-UNINSTALLED", Area.LEDGER, ExitCode.CONFLICT, """
        Slicewise was taken out of Slurm: no limits are set, jobs pass unchanged.

        `slicewise compile --again`; else disable the daemon, the timer, cron's line.
        """)
    LEDGER_IMBALANCE = ("SW-LEDGER-IMBALANCE", Area.LEDGER, ExitCode.FAILED, """
        `ledger verify`: transfers and open reservations do not add up.

        Compare with a backup, and see who may write to the schema `slicewise`.
        """)
    LEDGER_REFUSED = ("SW-LEDGER-REFUSED", Area.LEDGER, ExitCode.FAILED, """
        A rule of the database forbade a change; nothing was written.

        `slicewise ledger verify`. If it finds nothing and this comes again, report it with the
        daemon's line.
        """)
    BACKUP_BROKEN = ("SW-BACKUP-BROKEN", Area.LEDGER, ExitCode.FAILED, """
        A dump is not whole, is not the one that its record describes, or lacks that record.

        Don't rely on it: make another, check it, and keep both files of `ledger db backup`
        together.
        """)
    DATABASE_DOWN = ("SW-DATABASE-DOWN", Area.LEDGER, ExitCode.UNREACHABLE, """
        PostgreSQL can't be reached within 5 s, broke off, only reads, is slow, or does not let this
        role in. Users who ask the daemon learn no more than that. Admission goes on from memory;
        charging catches up.

        Follow PostgreSQL's words after the colon: whether it runs, then role, password and database
        of the URL, and pg_hba.conf.
        """)
    DATABASE_RIGHTS = ("SW-DATABASE-RIGHTS", Area.LEDGER, ExitCode.NOT_PERMITTED, """
        The database role of this user lacks a right, or a role may change what was booked.

        As the tables' owner: `slicewise ledger db grant ROLE --as daemon`, `operator` or `reader`;
        again after each upgrade.
        """)
    DATABASE_FAILED = ("SW-DATABASE-FAILED", Area.LEDGER, ExitCode.FAILED, """
        PostgreSQL, pg_dump or pg_restore ended with another error.

        Follow their words. A backup needs a role that reads both schemas, and programs as new as
        the server.
        """)
    DATABASE_BUSY = ("SW-DATABASE-BUSY", Area.LEDGER, ExitCode.BUSY, """
        Others use the tables for too long; the message names who has the strongest lock. Nothing
        was changed.

        Try again; end the session that hangs: `pg_stat_activity` has it.
        """)
    DATABASE_CONNECTIONS = ("SW-DATABASE-CONNECTIONS", Area.LEDGER, ExitCode.BUSY, """
        PostgreSQL has few connections left, or the role has all that it may.

        Give each role but the daemon's a `CONNECTION LIMIT`, or raise `max_connections`.
        """)
    DATABASE_ROLE = ("SW-DATABASE-ROLE", Area.LEDGER, ExitCode.NOT_FOUND, """
        PostgreSQL has no such role, or it is allowed everything anyway.

        `CREATE ROLE NAME LOGIN`, then again; give no duty to the owner or a superuser.
        """)
    DATABASE_READ_ONLY = ("SW-DATABASE-READ-ONLY", Area.LEDGER, ExitCode.CONFLICT, """
        PostgreSQL only reads: it is a standby, or `default_transaction_read_only` is set. Or each
        commit waits for a standby of `synchronous_standby_names` that is gone.

        Name the primary in the URL, or promote this one; take the setting out of postgresql.conf,
        the database and the role; bring the standby back.
        """)
    DATABASE_OLD = ("SW-DATABASE-OLD", Area.LEDGER, ExitCode.CONFLICT, """
        The database's tables are older than this version needs, or not there yet (`base`).

        `slicewise ledger db upgrade`, then start the daemon.
        """)
    DATABASE_NEW = ("SW-DATABASE-NEW", Area.LEDGER, ExitCode.CONFLICT, """
        A newer version of Slicewise has upgraded the database, or set what this one does not know.

        Use that version, or go back with it: `slicewise ledger db downgrade REVISION`.
        """)

    DAEMON_DOWN = ("SW-DAEMON-DOWN", Area.SERVERS, ExitCode.UNREACHABLE, """
        The daemon gave no answer in time: 10 ms at sbatch, 15 s for a command. At sbatch only
        services are refused for it, and GPUs without a type that nobody can decide. Or its socket
        is gone: only a restart makes it again.

        Try again; jobs go on, or are held until the daemon [decides
        later](../explanation/daemon.md#without-an-answer). On other hosts set `daemon.connect`.
        Operator: `systemctl status slicewise-daemon`.
        """)
    DAEMON_UNSURE = ("SW-DAEMON-UNSURE", Area.SERVERS, ExitCode.FAILED, """
        A change was sent to the daemon, and no answer came: it may have been made.

        Look before you repeat it: `slicewise key list`, `slicewise service list`.
        """)
    DAEMON_BLIND = ("SW-DAEMON-BLIND", Area.SERVERS, ExitCode.UNREACHABLE, """
        The daemon does not see all of Slurm, or looked more than 30 s ago; services are not listed
        by halves.

        Try again; if it lasts, `sync_failed` in the daemon's log says why.
        """)
    DAEMON_STANDBY = ("SW-DAEMON-STANDBY", Area.SERVERS, ExitCode.BUSY, """
        This daemon changes nothing in Slurm: another one of the cluster leads, or none does now.

        Ask the one that the message names, or try again in a few seconds.
        """)
    DAEMON_RUNNING = ("SW-DAEMON-RUNNING", Area.SERVERS, ExitCode.CONFLICT, """
        Another daemon runs: in the same `run_dir`, beside an `uninstall`, or leading without
        `pair`.

        Stop that one first: `systemctl stop slicewise-daemon`; or set `pair = true` on both hosts.
        """)
    FORBIDDEN = ("SW-FORBIDDEN", Area.SERVERS, ExitCode.NOT_PERMITTED, """
        This user may not ask that or do that, or there is no such job, service or tenant.

        Ask as the user that the message names, or ask its owner; a page, load again. The launcher
        must run as `daemon.launcher_user`; restart the daemon after that user was made.
        """)
    BUSY = ("SW-BUSY", Area.SERVERS, ExitCode.BUSY, """
        Too many connections or questions, of this user or in all; or another command is at work, or
        a period has not begun in the ledger.

        Try again in some seconds; close what keeps connections open.
        """)
    WIRE = ("SW-WIRE", Area.SERVERS, ExitCode.FAILED, """
        A message or a node's report can't be read, is too long, or asks what nobody answers.

        Use one version of Slicewise for daemon, launcher, commands and nodes; restart the daemon
        after an update. With one version: who is root on that node?
        """)
    INTERNAL = ("SW-INTERNAL", Area.SERVERS, ExitCode.FAILED, """
        A program met an error that it did not expect, or a solver found no answer.

        Report it, with the line `request_failed` of the log that has the hint's `request_id`, or
        with the input.
        """)
    MUNGE = ("SW-MUNGE", Area.SERVERS, ExitCode.NOT_PERMITTED, """
        Asking from another host, munged does not answer or refuses a credential, or another process
        answered in the daemon's place.

        Follow the hint: munged and the same key on both hosts, clocks within a minute, the same
        `daemon.munge_socket` and `daemon.slurm_user`.
        """)
    USER = ("SW-USER", Area.SERVERS, ExitCode.NOT_PERMITTED, """
        A server was not started as the user of its settings, that user is missing on this host, or
        `run_dir` belongs to another.

        Start it with its systemd unit; make the user, those of `[daemon]` with the same uid on all
        hosts.
        """)
    RESTART = ("SW-RESTART", Area.SERVERS, ExitCode.FAILED, """
        Daemon or launcher runs another program or mode than this host has, or slurmctld another
        slicewise.lua.

        Restart it; for slurmctld `touch` job_submit.lua.
        """)
    LAUNCHER_DOWN = ("SW-LAUNCHER-DOWN", Area.SERVERS, ExitCode.FAILED, """
        No launcher runs on the gateway's host, or it was stopped.

        `systemctl start slicewise-launcher`; `kill -CONT` where it was stopped.
        """)
    ADMISSION_LUA = ("SW-ADMISSION-LUA", Area.SERVERS, ExitCode.FAILED, """
        job_submit.lua, slicewise.lua or a library fails under slurmctld's Lua, or that Lua is not
        found. Nothing was written.

        Install what is named, mend the script, or put the lines in yourself; then `touch` it.
        """)
    ADMISSION_FILE = ("SW-ADMISSION-FILE", Area.SERVERS, ExitCode.NOT_FOUND, """
        job_submit.lua, its proposal or the kill switch can't be read or written, or is there
        already.

        Do what the hint says: be root or SlurmUser, make the directory, remove the old proposal.
        """)
    ADMISSION_LATE = ("SW-ADMISSION-LATE", Area.SERVERS, ExitCode.FAILED, """
        The process that answers slicewise.lua did not start in time, and is started again with more
        patience. Until it is there, jobs are [without an
        answer](../explanation/daemon.md#without-an-answer).

        Give slurmctld's host more processors, or end what takes them (`systemd-cgtop`).
        """)
    WEB_OFF = ("SW-WEB-OFF", Area.SERVERS, ExitCode.NOT_FOUND, """
        This site serves no page: `web.listen` is not set.

        An operator sets it and starts slicewise-web.service ([the page](../how-to/web.md)).
        """)
    WEB_DOWN = ("SW-WEB-DOWN", Area.SERVERS, ExitCode.FAILED, """
        Nobody answers where `web.listen` says.

        `systemctl enable --now slicewise-web`; `journalctl -u slicewise-web` says why it ended.
        """)
    WEB_TAKEN = ("SW-WEB-TAKEN", Area.SERVERS, ExitCode.FAILED, """
        Another program listens where `web.listen` says: it gets what browsers and the proxy send.

        End it, make another secret for the proxy, and let systemd hold the port:
        `systemctl enable --now slicewise-web.socket` ([the page](../how-to/web.md)).
        """)
    WEB_LOGIN = ("SW-WEB-LOGIN", Area.SERVERS, ExitCode.NOT_PERMITTED, """
        Nobody is logged in on the page, or a login address was used or is older than two minutes.

        `slicewise web login`
        """)
    WEB_HOST = ("SW-WEB-HOST", Area.SERVERS, ExitCode.REFUSED, """
        A browser asked for another host than `web.url` or `web.listen` names.

        Use the address of `slicewise web login`; behind a proxy, set `web.url`.
        """)
    WEB_PROXY = ("SW-WEB-PROXY", Area.SERVERS, ExitCode.NOT_PERMITTED, """
        A request names a user in `web.proxy_header`, but comes from no proxy of `web.proxies`,
        lacks its secret, or names several.

        Set `proxies` to the address that the web server sees; let the proxy send
        `X-Slicewise-Secret` and set the header ([the page](../how-to/web.md#by-a-reverse-proxy)).
        """)
    WEB_OIDC = ("SW-WEB-OIDC", Area.SERVERS, ExitCode.FAILED, """
        The OpenID provider can't be asked, or gives an id_token that is not to be believed.

        `web_provider_failed` in the web server's log; compare `[web.oidc]` with the provider's
        discovery document.
        """)
    TOKEN = ("SW-TOKEN", Area.SERVERS, ExitCode.NOT_PERMITTED, """
        A token of Slurm's is wrong, has ended, lasts too long, is let in nowhere, or was sent for a
        page; or Slurm gave none to a command that asks from another host.

        `scontrol token lifespan=3600`; of the page ask at PATH.json. Commands: follow the hint.
        """)
    TOKEN_KEY = ("SW-TOKEN-KEY", Area.SERVERS, ExitCode.FAILED, """
        `daemon.slurm_jwt_key` can't be read by the daemon, is no such key, or is not slurm.conf's.

        Let SlurmUser read it; write the line that `doctor --fix` prints, restart the daemon.
        """)
    MARKETPLACE = ("SW-MARKETPLACE", Area.SERVERS, ExitCode.FAILED, """
        400: a marketplace's agent asked for what Slicewise can't hold to, as a budget of money or a
        field that it does not know. Nothing was changed.

        Change the offering as the message says: `docs/how-to/marketplace.md`.
        """)
    MARKETPLACE_TOKEN = ("SW-MARKETPLACE-TOKEN", Area.SERVERS, ExitCode.FAILED, """
        401: the token of a marketplace's agent is in no file of `[marketplace.tokens]`, in two of
        them, or the daemon can't read the file.

        Make `api_token` of the offering what is in the file; the daemon's log names a bad file.
        """)
    WEB_PLAIN = ("SW-WEB-PLAIN", Area.SERVERS, ExitCode.FAILED, """
        `web.url` is an http address that other hosts reach: whoever listens gets cookies.

        Let the proxy speak https, and write that into `web.url`.
        """)

    WEB_NAME = ("SW-WEB-NAME", Area.SERVERS, ExitCode.FAILED, """
        The page and the gateway have one host name: browsers send the cookies of a host to all its
        ports.

        Give the page a host name of its own, in DNS, its certificate and `web.url`.
        """)

    GATEWAY_UNKNOWN = ("SW-GATEWAY-UNKNOWN", Area.CLIENTS, ExitCode.FAILED, """
        404: no route for `/TENANT/SERVICE`, or at `/TENANT/v1` no service of OpenAI's API for the
        `model`: misspelt, deleted, just submitted, or without a place.

        Compare with the address in `slicewise service status`. Operator: `no_backend_free` in the
        launcher's log asks for a larger `gateway.services` or `gateway.backends`.
        """)
    GATEWAY_DENIED = ("SW-GATEWAY-DENIED", Area.CLIENTS, ExitCode.FAILED, """
        403: the path is not inference, readiness or metadata, whatever the body says.

        Use `/v2`, `/v2/health/...`, `/v2/models/...`, or of OpenAI's API what the message lists. A
        replica loads its model when it starts.
        """)
    GATEWAY_METHOD = ("SW-GATEWAY-METHOD", Area.CLIENTS, ExitCode.FAILED, """
        405: no engine answers this method.

        Use GET, HEAD or POST; for pages in browsers, a proxy that answers CORS.
        """)
    GATEWAY_KEY = ("SW-GATEWAY-KEY", Area.CLIENTS, ExitCode.FAILED, """
        401, UNAUTHENTICATED: the request has no valid API key.

        Send `Authorization: Bearer KEY` or `x-api-key: KEY`; of both one need be valid. `slicewise
        key create TENANT` makes one; it holds within 5 s.
        """)
    GATEWAY_KEY_SERVICE = ("SW-GATEWAY-KEY-SERVICE", Area.CLIENTS, ExitCode.FAILED, """
        403, PERMISSION_DENIED: the API key opens another service of its tenant, or the models that
        its tenant, its person or the key is limited to don't have this one.

        Use a key of that service, or of the tenant: `slicewise key list`.
        """)
    GATEWAY_KEY_TENANT = ("SW-GATEWAY-KEY-TENANT", Area.CLIENTS, ExitCode.FAILED, """
        403, PERMISSION_DENIED: the API key is another tenant's.

        Use a key of the tenant in the address.
        """)
    GATEWAY_RATE = ("SW-GATEWAY-RATE", Area.CLIENTS, ExitCode.FAILED, """
        429 with Retry-After, RESOURCE_EXHAUSTED: too many requests a second for the tenant, or a
        minute for the tenant, the person or the key, as the message says.

        Send slower. Your limits: `slicewise key limits`. Operator: `[gateway.limits]`.
        """)
    GATEWAY_CONCURRENT = ("SW-GATEWAY-CONCURRENT", Area.CLIENTS, ExitCode.FAILED, """
        429 with Retry-After, RESOURCE_EXHAUSTED: too many requests of the tenant, the person or the
        key are open, as the message says.

        Wait for answers before sending more. Your limits: `slicewise key limits`. Operator:
        `[gateway.limits]`.
        """)
    GATEWAY_TOKENS = ("SW-GATEWAY-TOKENS", Area.CLIENTS, ExitCode.FAILED, """
        429 with Retry-After: a limit of tokens of the tenant, the person or the key leaves none,
        the budget of tokens that pays is used up, or no tokens could be set aside for an exact
        one. The message says which limit, or whose budget.

        Wait for as long as Retry-After says, or ask for a higher limit; of a budget
        `slicewise budget show TENANT --meter tokens`.
        """)
    GATEWAY_FAILING = ("SW-GATEWAY-FAILING", Area.CLIENTS, ExitCode.FAILED, """
        503 with Retry-After: three starts in a row failed, or the budget lets no replica start; the
        reason follows. Each request has another start tried after a pause.

        `slicewise service logs NAME`; correct and apply again, or `slicewise service restart NAME`.
        Of a budget: `slicewise budget show`, a shorter `lease_s`.
        """)
    GATEWAY_WAKING = ("SW-GATEWAY-WAKING", Area.CLIENTS, ExitCode.FAILED, """
        503 with Retry-After: no replica became ready within `gateway.hold_s`.

        Try again later. `slicewise service status NAME` says whether quota or Slurm keeps replicas
        back; a model that does not load is in NAME.logs/JOB_SLOT.log.
        """)
    GATEWAY_STARTING = ("SW-GATEWAY-STARTING", Area.CLIENTS, ExitCode.FAILED, """
        503 with Retry-After: HAProxy was restarted, and no launcher has put the routes or keys in.

        Try again. Operator: does the launcher run, see the daemon (`no_decision` in its log), and
        write in `gateway.directory` (`keys_not_set`)?
        """)
    GATEWAY_FULL = ("SW-GATEWAY-FULL", Area.CLIENTS, ExitCode.FAILED, """
        503 with Retry-After: no replica had room within `gateway.hold_s`, or five connections to
        replicas failed.

        Try again later. If it happens often, raise `max_replicas` or the quota.
        """)
    GATEWAY_METADATA = ("SW-GATEWAY-METADATA", Area.CLIENTS, ExitCode.FAILED, """
        INVALID_ARGUMENT of gRPC: the call names no service.

        Send metadata `slicewise-service: TENANT/SERVICE`, or use the service's host name, with a
        `gateway.domain`.
        """)
    GATEWAY_LOST = ("SW-GATEWAY-LOST", Area.CLIENTS, ExitCode.FAILED, """
        502: the replica ended before it had answered.

        The request may have begun: send it again if that does no harm, or set `retry_once = true`.
        The log is NAME.logs/JOB_SLOT.log.
        """)
    GATEWAY_SLOW = ("SW-GATEWAY-SLOW", Area.CLIENTS, ExitCode.FAILED, """
        504: no byte of the answer came within the service's `deadline_s`, or 10 min.

        Send less in one request, or let the model stream its answer.
        """)
    GATEWAY_REQUEST = ("SW-GATEWAY-REQUEST", Area.CLIENTS, ExitCode.FAILED, """
        400, 408: this is no HTTP request, or it was not complete within 10 s.

        Correct the client.
        """)
    GATEWAY_JSON = ("SW-GATEWAY-JSON", Area.CLIENTS, ExitCode.FAILED, """
        413: one inference has more than `gateway.max_json_mib` MiB of JSON.

        Send tensors as binary data or by gRPC; name images by URL where the service allows it, or
        send fewer. Operator: raise the setting, render, reload.
        """)
    GATEWAY_MODEL = ("SW-GATEWAY-MODEL", Area.CLIENTS, ExitCode.FAILED, """
        400 at `/TENANT/v1`: the body is no plain JSON object that says `model` once, early enough.

        Name the service as `model`, first: `GET /TENANT/v1/models` lists them.
        """)
    GATEWAY_MODEL_UNSEEN = ("SW-GATEWAY-MODEL-UNSEEN", Area.CLIENTS, ExitCode.FAILED, """
        307 at `/TENANT/v1`: `model` is not within the first `gateway.buffer_kib`. `Location` is the
        service's own address.

        Follow redirects with method and body, use `/TENANT/SERVICE/v1`, or write `model` first.
        """)
    GATEWAY_SEQUENCE = ("SW-GATEWAY-SEQUENCE", Area.CLIENTS, ExitCode.FAILED, """
        400: the service follows sequences, and the id of one is not within the first
        `gateway.buffer_kib`, or compressed.

        Send it as header `x-sequence-id` (gRPC: metadata), and `x-sequence-start: true` at first.
        """)
    GATEWAY_STATISTICS = ("SW-GATEWAY-STATISTICS", Area.CLIENTS, ExitCode.FAILED, """
        503, UNAVAILABLE: the launcher, which adds up counts and lists models, does not answer; or
        no replica has said any yet.

        Try again; an inference wakes the service. Operator: does the launcher run, may it write in
        `gateway.directory` (`statistics_not_served`), and may HAProxy's user enter that?
        """)
    GATEWAY_HEADERS = ("SW-GATEWAY-HEADERS", Area.CLIENTS, ExitCode.FAILED, """
        431: more than 8000 bytes of headers or of path.

        Send shorter ones.
        """)
    GATEWAY_ERROR = ("SW-GATEWAY-ERROR", Area.CLIENTS, ExitCode.FAILED, """
        500: HAProxy failed by itself.

        Operator: its log says why.
        """)

    GATEWAY_DOWN = ("SW-GATEWAY-DOWN", Area.GATEWAY, ExitCode.UNREACHABLE, """
        HAProxy does not answer on its runtime socket, or this user may not use that. The launcher
        changes nothing meanwhile.

        Start HAProxy with the rendered configuration; run the command on its host. For the
        launcher: `slicewise gateway render --socket-user`.
        """)
    GATEWAY_FAILED = ("SW-GATEWAY-FAILED", Area.GATEWAY, ExitCode.FAILED, """
        HAProxy refused a command, or its state is not that of the rendered configuration.

        `slicewise gateway render --check`, then restart HAProxy with that configuration.
        """)
    GATEWAY_IDENTITY = ("SW-GATEWAY-IDENTITY", Area.GATEWAY, ExitCode.NOT_FOUND, """
        This host lacks `gateway.identity`, by which replicas know the gateway, or the launcher may
        not read its key.

        Operator: `slicewise gateway render --socket-user USER`; copy `gateway.identity` to all
        hosts where services are applied.
        """)
    GATEWAY_STALE = ("SW-GATEWAY-STALE", Area.GATEWAY, ExitCode.FAILED, """
        Files in `gateway.directory` are not what would be rendered now, or HAProxy has not read
        them.

        `slicewise gateway render --check`, then reload HAProxy.
        """)
    GATEWAY_PORT = ("SW-GATEWAY-PORT", Area.GATEWAY, ExitCode.FAILED, """
        haproxy-slicewise.socket listens on another address than `gateway.bind`, another program
        listens there, or the gateway does not answer at `gateway.url`.

        Write `bind.conf` as [the gateway](../how-to/gateway.md#running-it) says; end that program;
        name in `gateway.url` where clients reach it.
        """)
    GATEWAY_MASTER = ("SW-GATEWAY-MASTER", Area.GATEWAY, ExitCode.FAILED, """
        HAProxy has no master socket: what replaced processes still do is not seen.

        Start HAProxy with [its option `-S`](../how-to/gateway.md).
        """)
    GATEWAY_FILES = ("SW-GATEWAY-FILES", Area.GATEWAY, ExitCode.FAILED, """
        HAProxy may have fewer files open than its configuration was rendered for.

        Give its unit as many (`LimitNOFILE`), or render under its limit.
        """)
    CERTIFICATE = ("SW-CERTIFICATE", Area.GATEWAY, ExitCode.FAILED, """
        A certificate of the gateway or the daemon can't be read, has ended, ends soon, or is not
        believed.

        A new one where `gateway.certificate` says; then reload HAProxy
        ([the gateway](../how-to/gateway.md)). The daemon's: where
        `daemon.certificate` says; then restart it ([without munge](../how-to/without-munge.md)).
        """)

    DRIVER_MISSING = ("SW-DRIVER-MISSING", Area.GPUS, ExitCode.NOT_FOUND, """
        No driver of NVIDIA's or AMD's answers on this host.

        Run it on a GPU node where nvidia-smi or amd-smi works; AMD's needs the package of the
        node's ROCm ([AMD](mig.md#amd-partitions)).
        """)
    DRIVER = ("SW-DRIVER", Area.GPUS, ExitCode.FAILED, """
        The driver answered with an error. After a failed cut the message says whether the GPU is as
        before.

        Run it as root if the message says so; else dmesg, `nvidia-smi -q`, `amd-smi static`. It may
        be run again.
        """)
    NODE_GPU = ("SW-NODE-GPU", Area.GPUS, ExitCode.NOT_FOUND, """
        A GPU has a fault, does not answer, is not in MIG mode, or is AMD's, whose modes Slicewise
        never changes. It was not touched.

        `slicewise node probe` shows it. An operator switches MIG mode on; AMD's modes by `amd-smi
        set`.
        """)
    MIG_IN_USE = ("SW-MIG-IN-USE", Area.GPUS, ExitCode.CONFLICT, """
        A process holds the instance, or other instances lie where one was to be made.

        `slicewise node probe` shows which; end the process or drain the node.
        """)
    MIG_CHANGED = ("SW-MIG-CHANGED", Area.GPUS, ExitCode.CONFLICT, """
        The GPU is cut otherwise than the plan supposed. It was not touched.

        The next run plans again; after a cut by hand `slicewise repartition survey` first.
        """)
    REPARTITION_HELD = ("SW-REPARTITION-HELD", Area.GPUS, ExitCode.CONFLICT, """
        Running jobs hold a device that would go, or keep the only order of devices from being
        possible. Nothing is changed for good.

        It is tried again when they have ended; a longer `repartition.move_s` waits longer.
        """)
    REPARTITION_CONF = ("SW-REPARTITION-CONF", Area.GPUS, ExitCode.REFUSED, """
        slurm.conf or gres.conf can't be read, has no lines of the node's own, counts fewer devices
        than the node would have, or would get a name that is not one word.

        `[repartition] slurm_conf`, beside which gres.conf is; write the node's lines anew, while it
        is empty: `slicewise node gres`.
        """)
    REPARTITION_NODE = ("SW-REPARTITION-NODE", Area.GPUS, ExitCode.CONFLICT, """
        The node is down or drained, is no GPU node of a managed partition, or is after the cut not
        what it should be; then it goes back.

        `scontrol show node`, and the log of its slurmd.
        """)
    REPARTITION_STUCK = ("SW-REPARTITION-STUCK", Area.GPUS, ExitCode.FAILED, """
        A repartition could neither be done nor undone; its node is drained.

        `slicewise repartition show ID`; mend the cause and `slicewise repartition run` again, or
        `slicewise repartition close ID`.
        """)
    SLO_UNREACHABLE = ("SW-SLO-UNREACHABLE", Area.GPUS, ExitCode.REFUSED, """
        No measured configuration of the model keeps the service's objectives on this board.

        Raise the SLO, or measure the model with smaller batches or on larger profiles.
        """)
    PROFILE_ENDED = ("SW-PROFILE-ENDED", Area.GPUS, ExitCode.PARTLY_DONE, """
        A measuring job ended before all of its points.

        See slicewise-profile-JOB.log. What was measured is kept; run it again.
        """)
    NODE_UNKNOWN = ("SW-NODE-UNKNOWN", Area.GPUS, ExitCode.NOT_FOUND, """
        Slurm has no node of that name, as a meter calls itself.

        Say its name in slurm.conf: `slicewise node meter --node NAME`
        ([energy](../how-to/energy.md)).
        """)
    ENERGY_COUNTER = ("SW-ENERGY-COUNTER", Area.GPUS, ExitCode.FAILED, """
        A board's counter of joules and its power, times time, differ by more than a fifth over two
        days.

        One of both is wrong: compare with the node's own meter. What the board's meter tells
        meanwhile is charged to nobody ([energy](../how-to/energy.md#when-a-counter-is-wrong)).
        """)
    ENERGY_TWICE = ("SW-ENERGY-TWICE", Area.GPUS, ExitCode.FAILED, """
        Meters saw more minutes of an hour of a board than it has, so its joules are counted twice.
        What they tell meanwhile is charged to nobody.

        Run one meter on a node ([energy](../how-to/energy.md)).
        """)
    NODE_GRES = ("SW-NODE-GRES", Area.GPUS, ExitCode.FAILED, """
        A node has other GPUs than Slurm expects, or no node of a managed partition has any.

        `slicewise node gres` on the node prints its lines for gres.conf and slurm.conf.
        """)
    NODE_TABLE = ("SW-NODE-TABLE", Area.GPUS, ExitCode.FAILED, """
        The driver offers other MIG profiles than the table has; the driver counts.

        Report it.
        """)
    NODE_PRICE = ("SW-NODE-PRICE", Area.GPUS, ExitCode.FAILED, """
        The node has GPUs of a type without a price.

        Name it in `[gpus]` of slicewise.toml, or leave it unmanaged.
        """)
    NODE_NAMESPACES = ("SW-NODE-NAMESPACES", Area.GPUS, ExitCode.FAILED, """
        Users of the node may make no namespaces.

        `sysctl -w user.max_user_namespaces=15000`, on Ubuntu 24.04
        `kernel.apparmor_restrict_unprivileged_userns=0`, or `engines.triton.private_shm = false`.
        """)
    NODE_CACHE = ("SW-NODE-CACHE", Area.GPUS, ExitCode.FAILED, """
        Services can't keep their models' files on a node, or gain nothing by it. They start all the
        same, and read `model_repository`.

        Make the folder of `launcher.node_cache` on a disk of the node, root's with mode 1777; the
        finding has the command. The folders above it are root's, and nobody else writes there, or
        they are sticky. Remove a folder in it that is not the user's whose number it has. Where it
        is memory, bound it by `size=`, and take that out of the node's `RealMemory`.
        Nothing is copied from a file system that has no time of a file's last change (ctime): the
        replica's log says `weights=source` and why.
        """)
    NODE_DOWN = ("SW-NODE-DOWN", Area.GPUS, ExitCode.FAILED, """
        GPU nodes are down, fail, are drained or have registered with other GPUs; or a managed
        partition is not up.

        `sinfo -R` says why; mend that, then `scontrol update NodeName=NAME State=RESUME` or
        `PartitionName=NAME State=UP`.
        """)

    VERSION = ("SW-VERSION", Area.SITE, ExitCode.FAILED, """
        slurmctld is older than 22.05, PostgreSQL than 13, HAProxy than 2.6, or an engine than the
        least version without known holes ([engine versions](engine-versions.md)).

        Upgrade it.
        """)
    CONF_LIMITS = ("SW-CONF-LIMITS", Area.SITE, ExitCode.FAILED, """
        slurm.conf lacks what quotas stand on: accounting by slurmdbd, enforced limits, all GPU
        types counted and charged at their price, GPUs allotted one by one, job_submit.lua.

        Write the lines of `doctor --fix` or `slicewise compile --slurm-conf`. job_submit.lua comes
        before its line (`slicewise admission install`): slurmctld does not start without it.
        """)
    CONF_PREEMPT = ("SW-CONF-PREEMPT", Area.SITE, ExitCode.FAILED, """
        Lent GPUs can't be called back, or late: nothing is preempted by QOS, or only
        once it has run for PreemptExemptTime.

        `PreemptType=preempt/qos`, `PreemptExemptTime=00:00:00`. PreemptMode may stay as it is, but
        for OFF ([what changes for the site's own jobs](../how-to/install.md#3-slurm)).
        """)
    CONF_REQUEUE = ("SW-CONF-REQUEUE", Area.SITE, ExitCode.FAILED, """
        `JobRequeue=0`: borrowed jobs without `--requeue` end for good when lenders need their
        quota.

        `JobRequeue=1`.
        """)
    CONF_PREEMPT_ORDER = ("SW-CONF-PREEMPT-ORDER", Area.SITE, ExitCode.FAILED, """
        Slurm ends for a lender those borrowed jobs first that have run longest.

        `SchedulerParameters=preempt_youngest_first`, beside the others; restart slurmctld ([whom
        Slurm preempts](../explanation/quotas.md#whom-slurm-preempts)).
        """)
    CONF_SERVICES = ("SW-CONF-SERVICES", Area.SITE, ExitCode.FAILED, """
        slurm.conf lacks what replicas need: ports of `MpiParams`, 100 at least, and 187 in
        `RequeueExitHold`, else an ended replica takes its slot with it.

        `MpiParams=ports=21000-21999`, a range of its own; `RequeueExitHold=187`, beside the site's.
        """)
    CONF_BOUNDS = ("SW-CONF-BOUNDS", Area.SITE, ExitCode.FAILED, """
        A bound of slurm.conf is too small: `MinJobAge`, `MaxJobCount` or `MaxArraySize`.

        `MinJobAge=300`, `MaxJobCount=10000`, `MaxArraySize=1001`.
        """)
    CONF_KILL_WAIT = ("SW-CONF-KILL-WAIT", Area.SITE, ExitCode.FAILED, """
        `KillWait` is under 5 s: replicas are killed with the requests that they still answer; or
        over 120 s: lenders wait.

        `KillWait=30`.
        """)
    CONF_POWER_SAVING = ("SW-CONF-POWER-SAVING", Area.SITE, ExitCode.FAILED, """
        Slurm powers nodes down, and `ResumeTimeout` is under 300 s: a slow boot sets its node down;
        `SuspendTime` is under 300 s: boots cost more than idling; with `ReturnToService=0` a
        node that booted too slowly stays down. Or `CR_LLN` or `LLN=YES` spreads jobs, so that few
        nodes are ever empty.

        `ResumeTimeout=600`, `SuspendTime=900`, `ReturnToService=2` ([power down empty
        nodes](../how-to/power-saving.md)).
        """)
    CONF_PRIORITY = ("SW-CONF-PRIORITY", Area.SITE, ExitCode.FAILED, """
        Slurm ignores site_factor, or a plugin of the site overwrites it.

        `PriorityType=priority/multifactor`, without `PrioritySiteFactorPlugin`.
        """)
    CONF_WEIGHTS = ("SW-CONF-WEIGHTS", Area.SITE, ExitCode.FAILED, """
        Slurm's own priority weights outweigh site_factor, or are more than a tenth of it.

        `[priority] max` ten times their sum
        ([priority](../explanation/priority.md#beside-slurms-own-factors)).
        """)
    CONF_DIFFERS = ("SW-CONF-DIFFERS", Area.SITE, ExitCode.FAILED, """
        slicewise.toml names another SlurmUser than slurm.conf, or a partition or a QOS that Slurm
        lacks; or units of systemd read another slurm.conf.

        Write in slicewise.toml what Slurm has, or make in Slurm what it names.
        """)
    CONF_AUTH = ("SW-CONF-AUTH", Area.SITE, ExitCode.FAILED, """
        Slurm has another munge socket than `[daemon] munge_socket`, or no munge although commands
        of other hosts ask the daemon by it.

        Make them the same; run munged with one key on these hosts, or leave `daemon.listen` and
        `daemon.connect` empty.
        """)
    CONF_PRIVATE = ("SW-CONF-PRIVATE", Area.SITE, ExitCode.FAILED, """
        `PrivateData` is not set: every user sees others' jobs and services.

        [Which users see whose jobs](../how-to/install.md#3-slurm), or accept the code.
        """)
    CONF_SPEC_CORES = ("SW-CONF-SPEC-CORES", Area.SITE, ExitCode.FAILED, """
        `AllowSpecResourcesUsage` is set: `--core-spec` takes cores that no limit counts.

        Take it out.
        """)
    CONF_SLOW_START = ("SW-CONF-SLOW-START", Area.SITE, ExitCode.FAILED, """
        `batch_sched_delay` is not 0: a released replica may wait so many seconds.

        `SchedulerParameters=batch_sched_delay=0`, beside the others.
        """)
    CONF_BACKFILL_WINDOW = ("SW-CONF-BACKFILL-WINDOW", Area.SITE, ExitCode.FAILED, """
        `bf_window` is shorter than `MaxTime` of a managed partition: no nodes are kept for the
        first job. Or there is no backfill: the first job keeps all others waiting.

        `SchedulerParameters=bf_window=` the longest MaxTime in minutes, beside the others;
        `SchedulerType=sched/backfill`.
        """)
    PARTITION_GATE = ("SW-PARTITION-GATE", Area.SITE, ExitCode.FAILED, """
        A managed partition has no `QOS=slicewise_gate`, so other QOS pass all quotas; or `AllowQos`
        or `DenyQos` bars tenants' QOS.

        Add the gate once sacctmgr shows that QOS, and take the other words away.
        """)
    PARTITION_WORDS = ("SW-PARTITION-WORDS", Area.SITE, ExitCode.FAILED, """
        A managed partition gives each job or user whole nodes (`OverSubscribe=EXCLUSIVE`,
        `ExclusiveUser`), or bars all users (`RootOnly`, `ReqResv`).

        Take the word out of the partition's line.
        """)
    PARTITION_MEMORY = ("SW-PARTITION-MEMORY", Area.SITE, ExitCode.FAILED, """
        A job that asks for no memory gets all of its node's, whose other GPUs lie idle.

        `DefMemPerGPU` or `DefMemPerCPU` on the partition.
        """)
    GPU_PRICE = ("SW-GPU-PRICE", Area.SITE, ExitCode.FAILED, """
        GPUs of a managed partition have no type or no price, or jobs share them: nobody is charged.

        Name the type in `[gpus]` of slicewise.toml ([which names are
        read](../reference/mig.md#slurms-side)); a price of shared GPUs in `[shared]`.
        """)
    DEVICES_OPEN = ("SW-DEVICES-OPEN", Area.SITE, ExitCode.FAILED, """
        Slurm does not keep jobs off devices that they were not given: tenants on one node can use
        each other's MIG instances.

        `TaskPlugin=task/cgroup,task/affinity`, and `ConstrainDevices=yes` in the cgroup.conf of all
        nodes; restart slurmd.
        """)
    PROCESSES_LOOSE = ("SW-PROCESSES-LOOSE", Area.SITE, ExitCode.FAILED, """
        Slurm may not find all processes of a job: one may live on with an instance that the next
        job gets.

        `ProctrackType=proctrack/cgroup` while no job runs.
        """)
    SUBMITS_OPEN = ("SW-SUBMITS-OPEN", Area.SITE, ExitCode.FAILED, """
        One user can have so many jobs waiting that slurmctld takes no other (`MaxJobCount`).

        `MaxSubmitJobs` on the accounts ([install](../how-to/install.md#3-slurm)).
        """)
    LIMITS_SHARED = ("SW-LIMITS-SHARED", Area.SITE, ExitCode.FAILED, """
        A tenant's QOS are used on another cluster of the same slurmdbd: two daemons set one limit.

        Give the account another name on one of them ([several
        clusters](../how-to/sizing.md#several-clusters)).
        """)
    LIMITS_PASSED = ("SW-LIMITS-PASSED", Area.SITE, ExitCode.FAILED, """
        A QOS of the site passes the gate (OverPartQOS); its jobs count towards no quota.

        `sacctmgr modify qos NAME set Flags-=OverPartQOS`.
        """)
    LIMITS_GRACE = ("SW-LIMITS-GRACE", Area.SITE, ExitCode.FAILED, """
        A borrowed QOS has a `GraceTime`: batch jobs fail instead of being requeued, and lenders
        wait ([why](../decisions/0045-kill-wait-is-the-notice.md)).

        `sacctmgr modify qos NAME set GraceTime=0`; replicas finish their requests in `KillWait`.
        """)
    LIMITS_BY_HAND = ("SW-LIMITS-BY-HAND", Area.SITE, ExitCode.FAILED, """
        A limit was changed with sacctmgr since Slicewise set it, or one was set on a QOS of
        Slicewise's that it never sets.

        `[ledger] by_hand` says what becomes of the first; of the second, the `sacctmgr` that
        `doctor --fix` prints.
        """)
    LIMITS_ADMINS = ("SW-LIMITS-ADMINS", Area.SITE, ExitCode.FAILED, """
        Members of tenants have an AdminLevel in Slurm, by which they may change QOS and limits.

        `sacctmgr modify user NAME set AdminLevel=None`; if they run the cluster, accept the code.
        """)
    LIMITS_MINUTES = ("SW-LIMITS-MINUTES", Area.SITE, ExitCode.FAILED, """
        A limit of the site's own (GrpTRESMins, or GrpTRES=billing) stops jobs whatever their quota;
        with other TRESBillingWeights it is worth other hours.

        Before the weights are changed: the line or command that is said
        ([allocations](../how-to/billing.md#allocations)). Keep a tenant's, or set a budget
        instead.
        """)
    LENDING_GROUP = ("SW-LENDING-GROUP", Area.SITE, ExitCode.FAILED, """
        A group has no lending limit, so what tenants below it lend stays within the group.

        `slicewise tenant-quota set GROUP --lending-limit unlimited`.
        """)
    SCRIPT_INSTALL = ("SW-SCRIPT-INSTALL", Area.SITE, ExitCode.FAILED, """
        job_submit.lua is missing, lacks Slicewise's lines, or loads a slicewise.lua that is not
        there.

        `slicewise admission install`; where a script is there, `--write-proposal`, then `mv`.
        """)
    SCRIPT_OLD = ("SW-SCRIPT-OLD", Area.SITE, ExitCode.FAILED, """
        The lines in job_submit.lua are not those that would be proposed now.

        `slicewise admission install --write-proposal`, then `mv`.
        """)
    SCRIPT_PATH = ("SW-SCRIPT-PATH", Area.SITE, ExitCode.FAILED, """
        The path of slicewise.lua in job_submit.lua holds a version of Python, with which that file
        moves.

        `slicewise admission install` after each change of Python, or accept the code.
        """)
    SCRIPT_MODE = ("SW-SCRIPT-MODE", Area.SITE, ExitCode.FAILED, """
        slicewise.lua is in another mode than `[daemon] mode`.

        Set `mode` in the protected lines of job_submit.lua, once the daemon runs in that mode
        ([modes](../explanation/daemon.md#modes)).
        """)
    SCRIPT_OFF = ("SW-SCRIPT-OFF", Area.SITE, ExitCode.FAILED, """
        The kill switch is set.

        `slicewise admission on`.
        """)
    SCRIPT_PASSED = ("SW-SCRIPT-PASSED", Area.SITE, ExitCode.FAILED, """
        In mode enforce, jobs got GPUs without slicewise.lua.

        slurmctld's log says why.
        """)
    LEDGER_OWNER = ("SW-LEDGER-OWNER", Area.SITE, ExitCode.FAILED, """
        The daemon's role owns the ledger's tables or is a superuser.

        `slicewise ledger db grant ROLE --as daemon` for a role of its own.
        """)
    LEDGER_FSYNC = ("SW-LEDGER-FSYNC", Area.SITE, ExitCode.FAILED, """
        PostgreSQL runs with `fsync = off` or `full_page_writes = off`.

        `ALTER SYSTEM SET fsync = 'on'`, and `SELECT pg_reload_conf()`.
        """)
    LEDGER_BACKUP = ("SW-LEDGER-BACKUP", Area.SITE, ExitCode.FAILED, """
        PostgreSQL archives nothing and has no standby.

        [Back it up](../how-to/backup.md); where dumps are made, accept the code.
        """)
    LEDGER_SEALS = ("SW-LEDGER-SEALS", Area.SITE, ExitCode.FAILED, """
        Transfers are more than an hour old and not sealed.

        The daemon's log says what keeps it from sealing.
        """)
    LEDGER_BLOAT = ("SW-LEDGER-BLOAT", Area.SITE, ExitCode.FAILED, """
        A table has more dead rows than living ones.

        `VACUUM`; end transactions that stay open; switch autovacuum on.
        """)
    SACCTMGR_DUMP = ("SW-SACCTMGR-DUMP", Area.SITE, ExitCode.FAILED, """
        There is no dump of sacctmgr from before mode enforce.

        `sacctmgr dump CLUSTER file=/etc/slicewise/sacctmgr-before-slicewise.cfg`.
        """)
    KEY_LEFT = ("SW-KEY-LEFT", Area.SITE, ExitCode.FAILED, """
        The person of an API key is in the tenant's account no more: the key lets nothing in.

        A member makes another with `slicewise key create`; then `slicewise key delete KEY_ID`.
        """)
    FILE_RIGHTS = ("SW-FILE-RIGHTS", Area.SITE, ExitCode.FAILED, """
        A file of Slicewise can be read or changed by too many, belongs to another user, or can't be
        read by its own.

        The `chmod`, `chgrp` and `chown` that `doctor --fix` prints.
        """)
    FILE_MISSING = ("SW-FILE-MISSING", Area.SITE, ExitCode.FAILED, """
        A file or a socket that slicewise.toml or Slurm names is not there.

        Put it there, start the program that makes the socket, or correct the path.
        """)
    DISK_FULL = ("SW-DISK-FULL", Area.SITE, ExitCode.FAILED, """
        A folder into which Slicewise, Slurm or PostgreSQL writes has no space or inode left, or is
        mounted read-only.

        Delete what is not needed, or give it more room; dmesg says why the kernel mounts read-only.
        """)
    PORT_HELD = ("SW-PORT-HELD", Area.SITE, ExitCode.FAILED, """
        Another program listens on a port that slicewise.toml names.

        End that program, or name a free port.
        """)
    UNIT_OFF = ("SW-UNIT-OFF", Area.SITE, ExitCode.FAILED, """
        A unit of systemd is here and does not start with the host.

        `systemctl enable` it.
        """)
    PACKAGE = ("SW-PACKAGE", Area.SITE, ExitCode.FAILED, """
        Files of Slicewise's own are missing; or they, or slurmd's spool with the scripts of jobs,
        lie where no program can be started.

        Install the same version again; remount what has `noexec`.
        """)
    HOST_PORTS = ("SW-HOST-PORTS", Area.SITE, ExitCode.FAILED, """
        The kernel gives ports of `MpiParams` to outgoing connections, too.

        `net.ipv4.ip_local_reserved_ports` on all GPU nodes, or a lower range.
        """)
    CLOCK_SKEW = ("SW-CLOCK-SKEW", Area.SITE, ExitCode.FAILED, """
        The clock of slurmctld or of PostgreSQL is more than 2 s off this host's.

        Run chrony on all hosts.
        """)

    SANDBOX_STATE = ("SW-SANDBOX-STATE", Area.SANDBOX, ExitCode.CONFLICT, """
        state.json is damaged or of another version, or none of the 250 slots is free.

        `slicewise sandbox down`, of this or another `--dir`, then `up`; or `up --anew`. Both
        discard its data.
        """)
    SANDBOX_FAILED = ("SW-SANDBOX-FAILED", Area.SANDBOX, ExitCode.FAILED, """
        A server ended or was not ready in time, or a command of the demo failed. Their last lines
        follow. A new sandbox was taken down again.

        Read those lines, and a code among them; `--keep` leaves the demo's cluster up, with logs in
        `log/`. On a busy machine, try again; `up --anew` discards.
        """)
    SANDBOX_DOWN = ("SW-SANDBOX-DOWN", Area.SANDBOX, ExitCode.NOT_FOUND, """
        No sandbox is up in that directory.

        `slicewise sandbox up`, or give the `--dir` where it is.
        """)

    # fmt: on


_BY_TEXT: Mapping[str, Code] = {code.value: code for code in Code}


def known(code: str) -> Code:
    """Return the code that another process wrote; WIRE for one of another version of Slicewise."""
    return _BY_TEXT.get(code, Code.WIRE)
