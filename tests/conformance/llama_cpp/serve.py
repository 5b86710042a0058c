"""What the executable `llama-server` of this folder runs: our server, with llama-server's options.

Exits with 77 if an option is one that our server does not have.
"""

from __future__ import annotations

import sys
import tempfile

import sinkstream
from sinkstream.server import serve as serving
from sinkstream.server import service as services
from sinkstream.server.app import create_app
from sinkstream.server.config import ServerConfig
from sinkstream.server.middleware import App
from sinkstream.server.service import Service
from tests.conformance.llama_cpp import flags
from tests.conformance.llama_cpp.adapter import Adapter


def main() -> int:
    """Serve until SIGTERM."""
    try:
        settings = flags.read(sys.argv[1:])
    except flags.NotOurs as error:
        print(f"llama-server: {error} is not an option of ours.", file=sys.stderr)
        return 77
    with tempfile.TemporaryDirectory() as store:
        _serve(settings, store)
    return 0


def _serve(settings: flags.Settings, store: str) -> None:
    config = ServerConfig(
        port=settings.port,
        model_name=settings.name,
        api_keys=(settings.api_key,) if settings.api_key else (),
        store=store,
        no_page=not settings.has_page,
        drain_s=0,
    )

    def adapted(service: Service) -> App:
        return Adapter(create_app(service), service, settings.defaults)

    # llama.cpp's tests know its builds by their first letter.
    fingerprint = services._fingerprint
    services._fingerprint = lambda model: f"b-{fingerprint(model)}"
    serving.create_app = adapted
    serving.serve(
        config,
        lambda: sinkstream.load(
            "smollm2", sinks=flags.SINKS, window=settings.window, max_sequences=settings.slots
        ),
    )


if __name__ == "__main__":
    sys.exit(main())
