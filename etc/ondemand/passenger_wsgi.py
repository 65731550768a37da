"""Shows in Open OnDemand which services a user may see, as ``slicewise service list`` does.

Open OnDemand runs it with Passenger, as the user who is logged in, so the user sees there what the
command shows in a shell. It needs Python 3.9 and the command, and nothing else.
"""

import html
import json
import os
import subprocess
from collections.abc import Callable, Iterable

COMMAND = os.environ.get("SLICEWISE_COMMAND", "/usr/bin/slicewise")
TIMEOUT_S = 30
REFRESH_S = 60
CONTENT = [
    ("Content-Type", "text/html; charset=utf-8"),
    ("Cache-Control", "no-store"),
    ("Content-Security-Policy", "default-src 'none'; style-src 'unsafe-inline'"),
]
PAGE = """<!DOCTYPE html>
<html lang="en"><head><meta charset="utf-8"><meta http-equiv="refresh" content="{refresh_s}">
<title>Inference services</title><style>
body {{ font-family: sans-serif; margin: 2em }}
th, td {{ text-align: left; padding: .3em 1em .3em 0; border-bottom: 1px solid #ddd }}
</style></head><body><h1>Inference services</h1>
{content}
</body></html>
"""
HEAD = "".join(
    f"<th>{name}</th>"
    for name in ("Service", "State", "Replicas ready", "GPUs each", "Requests waiting", "Address")
)


def application(environ: dict, start_response: Callable) -> Iterable[bytes]:
    """Answer one request of a browser (WSGI)."""
    if environ["REQUEST_METHOD"] not in {"GET", "HEAD"}:
        start_response("405 Method Not Allowed", [*CONTENT, ("Allow", "GET, HEAD")])
        return [b""]
    status, content = listed()
    start_response(status, CONTENT)
    page = PAGE.format(refresh_s=REFRESH_S, content=content)
    return [b"" if environ["REQUEST_METHOD"] == "HEAD" else page.encode()]


def listed() -> tuple:
    """Return the HTTP status and the content: a table, or why there is none."""
    try:
        done = subprocess.run(
            (COMMAND, "service", "list", "--json"),
            capture_output=True,
            text=True,
            timeout=TIMEOUT_S,
            check=True,
        )
        services = json.loads(done.stdout)
    except subprocess.CalledProcessError as error:
        return failed(error.stderr.strip())
    except (OSError, ValueError, subprocess.TimeoutExpired) as error:
        return failed(str(error))
    if not services:
        return (
            "200 OK",
            "<p>You may see no service. <code>slicewise service init</code> begins one.</p>",
        )
    rows = "\n".join(map(row, services))
    return "200 OK", f"<table><tr>{HEAD}</tr>\n{rows}\n</table>"


def failed(why: str) -> tuple:
    """Say why the list can't be shown."""
    return (
        "503 Service Unavailable",
        f"<p>The services can't be listed.</p><pre>{escaped(why)}</pre>",
    )


def row(service: dict) -> str:
    """Return a service's line of the table."""
    ready, backlog = len(service["slots"].get("ready", ())), service["backlog"]
    cells = (
        service["service"],
        service["state"],
        f"{ready} of at most {service['max_replicas']}",
        f"{service['gpus']} × {service['profile']}",
        "not known" if backlog is None else backlog,
        service["url"],
    )
    line = "".join(f"<td>{escaped(cell)}</td>" for cell in cells)
    # Null if the launcher told nothing.
    report = service["report"] or {"reason": ""}
    return f'<tr title="{escaped(report["reason"])}">{line}</tr>'


def escaped(value: object) -> str:
    """Return text for HTML: users choose names and models."""
    return html.escape(str(value))
