#!/bin/sh
# Makes the page's user, if there is none of that name yet. Starts nothing, and restarts nothing: the
# tables of the ledger come first (docs/how-to/backup.md).
set -e
case "$1" in
configure | 1 | 2)
    if command -v systemd-sysusers >/dev/null; then
        systemd-sysusers slicewise-web.conf
    elif ! getent passwd slicewise-web >/dev/null; then
        useradd --system --user-group --no-create-home --home-dir /nonexistent --shell /usr/sbin/nologin slicewise-web
    fi
    ;;
esac
if [ -d /run/systemd/system ]; then
    systemctl daemon-reload
    if systemctl --quiet is-active slicewise-daemon.service; then
        echo "slicewise-daemon runs on with the former version. Now: slicewise ledger db upgrade, then"
        echo "systemctl restart slicewise-daemon, slicewise admission install, touch job_submit.lua."
    fi
    if systemctl --quiet is-active slicewise-web.service; then
        echo "slicewise-web runs on with the former version. After the daemon: systemctl restart slicewise-web."
    fi
fi
