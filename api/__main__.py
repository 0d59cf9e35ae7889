"""The API server alone: `python -m api --host 0.0.0.0 --port 8080`, with KERNELWRIGHT_DATABASE_URL and _REDIS_URL set.

`kernelwright up` runs it together with everything else.
"""

from __future__ import annotations

import argparse
import sys

import uvicorn

from api.connections import BoundedProtocol
from db import tracing
from db.settings import Settings, SettingsError, check_bind

# Waiters are released at once; this is for the answers that are being written.
_GRACE_S = 5


def main(arguments: list[str] | None = None) -> int:
    """Serve until SIGTERM or Ctrl-C. Exits 2 when a setting is missing, with a sentence that says which; so also when
    others could reach it and no keys are asked for."""
    parser = argparse.ArgumentParser(prog="python -m api", description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--host", default="127.0.0.1", help="address to listen on (default: %(default)s)")
    parser.add_argument("--port", type=int, default=8080, help="default: %(default)s; 0 takes a free one")
    parser.add_argument("--uds", help="a Unix socket instead of host and port")
    chosen = parser.parse_args(arguments)
    try:
        settings = Settings()
        _ = settings.sqlalchemy_url, settings.broker_url
        check_bind(settings, chosen.host)
        tracing.check(settings)
    except SettingsError as error:
        sys.stderr.write(f"{error}\n")
        return 2
    # Our own log lines say what was served; uvicorn's access log would say it again without the request id.
    uvicorn.run(
        "api.app:create_app",
        factory=True,
        http=BoundedProtocol,
        host=chosen.host,
        port=chosen.port,
        uds=chosen.uds,
        log_config=None,
        access_log=False,
        timeout_graceful_shutdown=_GRACE_S,
        server_header=False,
    )
    return 0


if __name__ == "__main__":
    sys.exit(main())
