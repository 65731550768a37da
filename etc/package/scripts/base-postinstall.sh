#!/bin/sh
# Makes the launcher's user, if there is none of that name yet.
set -e
case "$1" in
configure | 1 | 2)
    if command -v systemd-sysusers >/dev/null; then
        systemd-sysusers slicewise.conf
    elif ! getent passwd slicewise >/dev/null; then
        useradd --system --user-group --no-create-home --home-dir /nonexistent --shell /usr/sbin/nologin slicewise
    fi
    ;;
esac
