"""A real Prometheus beside a sandbox, with Slicewise's rules in which time runs faster."""

import json
import re
import shutil
import urllib.parse
import urllib.request
from pathlib import Path
from typing import Any

import yaml
from free_ports import free_port
from waiting import until

from slicewise.sandbox.cluster import Sandbox

FASTER = 60
"""Each ``for`` and each window is so many times shorter, and so is what is counted in a window.
Metrics are read and rules evaluated each second. Seconds that a metric itself tells stay."""
_RULES = Path(__file__).parents[2] / "etc" / "slicewise.rules.yml"
_HOLD = re.compile(r"(?<=for: )(\d+)([mh])")
_WINDOW = re.compile(r"(?<=\[)(\d+)([mh])(?=\])")
_COUNT = re.compile(r"(increase\([^)]*\) > )(\d+)")
_SECONDS = {"m": 60, "h": 3600}


def faster(rules: str) -> str:
    """The rules with time running ``FASTER``."""

    def shorter(found: re.Match[str]) -> str:
        return f"{int(found[1]) * _SECONDS[found[2]] // FASTER}s"

    shown = _WINDOW.sub(shorter, _HOLD.sub(shorter, rules))
    return _COUNT.sub(lambda found: f"{found[1]}{int(found[2]) / FASTER:g}", shown)


class AlertWatch:
    """Prometheus, which scrapes the sandbox's daemon and launcher."""

    def __init__(self, sandbox: Sandbox) -> None:
        self._sandbox = sandbox
        self._port = free_port()
        self._directory = sandbox.layout.directory / "prometheus"
        self._targets = [f"127.0.0.1:{free_port()}" for _ in ("daemon", "launcher")]
        self._settings = sandbox.layout.settings_file
        self._before = self._settings.read_text(encoding="utf-8")

    def start(self) -> None:
        """Let daemon and launcher serve their metrics, and Prometheus read them."""
        daemon, launcher = self._targets
        self._configure(
            self._before.replace("[daemon]", f'[daemon]\nmetrics = "{daemon}"').replace(
                "[launcher]", f'[launcher]\nmetrics = "{launcher}"'
            )
        )
        self._directory.mkdir()
        rules = self._directory / "rules.yml"
        rules.write_text(faster(_RULES.read_text(encoding="utf-8")), encoding="utf-8")
        scrape = {
            "job_name": "slicewise",
            "static_configs": [{"targets": self._targets, "labels": {"cluster": "lab"}}],
        }
        config = {
            "global": {"scrape_interval": "1s", "evaluation_interval": "1s"},
            "rule_files": [str(rules)],
            "scrape_configs": [scrape],
        }
        file = self._directory / "prometheus.yml"
        file.write_text(yaml.safe_dump(config), encoding="utf-8")
        program = shutil.which("prometheus")
        assert program is not None
        argv = (
            *(program, f"--config.file={file}", "--log.level=warn"),
            f"--storage.tsdb.path={self._directory}/data",
            f"--web.listen-address=127.0.0.1:{self._port}",
        )
        self._sandbox.start("prometheus", "root", argv)
        until(self._is_ready)

    def stop(self) -> None:
        """End Prometheus, and leave daemon and launcher as they were."""
        self._sandbox.stop("prometheus")
        self._configure(self._before)

    def _configure(self, text: str) -> None:
        """With these settings daemon and launcher start again."""
        self._settings.write_text(text, encoding="utf-8")
        for name in ("launcher", "daemon"):
            self._sandbox.stop(name)
        self._sandbox.restore(print)

    def _is_ready(self) -> bool:
        try:
            return [one["value"][1] for one in self.query("up")] == ["1", "1"]
        except OSError:
            return False

    def query(self, expression: str) -> list[dict[str, Any]]:
        """What the expression is now; OSError if Prometheus does not answer or refuses it."""
        url = f"http://127.0.0.1:{self._port}/api/v1/query"
        asked = urllib.parse.urlencode({"query": expression})
        with urllib.request.urlopen(f"{url}?{asked}", timeout=10) as reply:  # noqa: S310
            found: list[dict[str, Any]] = json.load(reply)["data"]["result"]
            return found

    def fires(self, alert: str) -> bool:
        """Whether the alert fires now."""
        return bool(self.query(f'ALERTS{{alertname="{alert}",alertstate="firing"}}'))

    def until_fires(self, alert: str) -> None:
        """Until the alert fires, whose fault stays."""
        until(lambda: self.fires(alert))

    def until_fired(self, alert: str) -> None:
        """Until the alert fires or has fired, whose fault ends by itself: not before this test."""
        fired = f'ALERTS{{alertname="{alert}",alertstate="firing"}}'
        until(lambda: self.query(f"max_over_time({fired}[1h])"))

    def until_clear(self, alert: str) -> None:
        """Until the alert fires no more."""
        until(lambda: not self.fires(alert))
