#!/bin/sh
# Prints the sacctmgr commands that make accounts out of groups, as `getent group` prints these
# (LDAP, SSSD, /etc/group): accounts and users that Slurm lacks, and users who left their group.
#
#   sacctmgr -nP show assoc cluster=CLUSTER format=account,user > now.txt
#   getent group | groups-to-accounts.sh CLUSTER PREFIX now.txt [PARENT] > commands.sh
#   sh -x commands.sh
#
# A group PREFIXname is account "name"; a new account is made below PARENT, or at the top. Accounts
# that exist stay where they are, and those without a group are left alone. Names that Slurm or a
# shell could take for something else are left out and named on stderr. Without any group it exits
# 1 and prints nothing: a directory that does not answer empties no account.
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
BEGIN {
    FS = "|"
    while ((getline < now) > 0) { there[$1, $2] = 1; row[++rows] = $1; user[rows] = $2 }
    FS = ":"
}
index($1, prefix) == 1 {
    account = tolower(substr($1, length(prefix) + 1))
    if (!plain(account)) { skip("group", $1); next }
    if (!(account in known)) { known[account] = 1; order[++groups] = account }
    count = split($4, names, ",")
    for (i = 1; i <= count; i++) {
        if (names[i] == "" || (account, names[i]) in member) continue
        if (!plain(names[i])) { skip("user", names[i]); continue }
        member[account, names[i]] = 1
        if (!((account, names[i]) in there)) joins[account] = joins[account] "," names[i]
    }
}
END {
    if (!groups) { print "no group begins with \"" prefix "\"" > "/dev/stderr"; exit 1 }
    for (i = 1; i <= groups; i++) {
        account = order[i]
        if (!((account, "") in there)) said("add account " account " parent=" parent)
        if (account in joins) said("add user " substr(joins[account], 2) " account=" account)
    }
    for (i = 1; i <= rows; i++)
        if (user[i] != "" && row[i] in known && !((row[i], user[i]) in member) && plain(user[i]))
            said("remove user where name=" user[i] " account=" row[i])
}'
