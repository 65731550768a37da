#!/bin/sh
# Prints the sacctmgr commands that make accounts out of groups, as `getent group` prints these
# (LDAP, SSSD, /etc/group): accounts and users that Slurm lacks, and users who left their group.
#
#   sacctmgr -nP show assoc cluster=CLUSTER format=account,user > now.txt
#   getent group | groups-to-accounts.sh CLUSTER PREFIX now.txt [PARENT] > commands.sh
#   sh -x commands.sh
#
# A group PREFIXname is account "name"; a new account is made below PARENT, or at the top. Accounts
# that exist stay where they are, and those without a group are left alone. Users `Alice` and
# `alice` are one, since sacctmgr makes both lower case. Users of an account stay if its group is
# their first one (`getent passwd`), or lists no member at all; such a group is named on stderr.
# Names that Slurm or a shell could take for something else are left out and named there, too.
# Without any group it exits 1 and prints nothing: a directory that does not answer empties no
# account.
set -eu
[ $# -eq 3 ] || [ $# -eq 4 ] || {
    echo "usage: $0 CLUSTER PREFIX ASSOCIATIONS [PARENT] < GROUPS" >&2
    exit 2
}
[ -s "$3" ] || { echo "$3 has no associations" >&2; exit 1; }
exec awk -v cluster="$1" -v prefix="$2" -v now="$3" -v parent="${4-root}" '
function plain(name) { return name ~ /^[A-Za-z0-9_][A-Za-z0-9_.-]*$/ && name != "root" }
function skip(what, name) { print "left out: " what " \"" name "\"" > "/dev/stderr" }
function said(words) { print "sacctmgr -i " words " cluster=" cluster }
function begins_in(user, account,    command, line, field) {
    command = "getent passwd " user
    command | getline line
    close(command)
    split(line, field, ":")
    return (account, field[4]) in gid
}
BEGIN {
    FS = "|"
    while ((getline < now) > 0) { there[$1, tolower($2)] = 1; row[++rows] = $1; user[rows] = $2 }
    FS = ":"
}
index($1, prefix) == 1 {
    account = tolower(substr($1, length(prefix) + 1))
    if (!plain(account)) { skip("group", $1); next }
    if (!(account in known)) { known[account] = 1; order[++groups] = account }
    gid[account, $3] = 1
    if ($4 != "") has_members[account] = 1
    count = split($4, names, ",")
    for (i = 1; i <= count; i++) {
        name = tolower(names[i])
        if (name == "" || (account, name) in member) continue
        if (!plain(name)) { skip("user", names[i]); continue }
        member[account, name] = 1
        if (!((account, name) in there)) joins[account] = joins[account] "," names[i]
    }
}
END {
    if (!groups) { print "no group begins with \"" prefix "\"" > "/dev/stderr"; exit 1 }
    for (i = 1; i <= groups; i++) {
        account = order[i]
        if (!((account, "") in there)) said("add account " account " parent=" parent)
        if (account in joins) said("add user " substr(joins[account], 2) " account=" account)
    }
    for (i = 1; i <= rows; i++) {
        if (!(row[i] in known) || !plain(user[i]) || (row[i], tolower(user[i])) in member) continue
        if (!(row[i] in has_members)) empty[row[i]] = 1
        else if (!begins_in(user[i], row[i]))
            said("remove user where name=" user[i] " account=" row[i])
    }
    for (account in empty) skip("users to remove, since no member is listed for account", account)
}'
