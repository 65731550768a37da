#!/bin/sh
# Starts nothing, and restarts nothing: the tables of the ledger come first (docs/how-to/upgrade.md).
set -e
if [ -d /run/systemd/system ]; then
    systemctl daemon-reload
    if systemctl --quiet is-active slicewise-daemon.service; then
        echo "slicewise-daemon runs on with the former version. Now: slicewise ledger db upgrade, then"
        echo "systemctl restart slicewise-daemon, slicewise admission install, touch job_submit.lua."
    fi
fi
