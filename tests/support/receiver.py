"""A receiver of webhooks: a real HTTP or HTTPS server on loopback that keeps what it got and answers as it is told."""

from __future__ import annotations

import ssl
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from ipaddress import ip_address
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID
from standardwebhooks import Webhook

PATIENCE_S = 60.0


@dataclass(frozen=True)
class Got:
    """A request as it arrived."""

    path: str
    headers: dict[str, str]
    body: bytes

    def verified(self, secret: str) -> Any:
        """Its body, when the library finds it signed with this secret. Raises WebhookVerificationError."""
        return Webhook(secret).verify(self.body, self.headers)


@dataclass(frozen=True)
class Reply:
    """An answer. `drip_s`: wait so long before each byte of the body. `before`: done when the request has arrived."""

    status: int = 204
    headers: Mapping[str, str] = field(default_factory=dict)
    body: bytes = b""
    drip_s: float = 0.0
    before: Callable[[], None] = lambda: None


class Receiver:
    """Answers with each reply in turn, and with the last one from then on."""

    def __init__(self, *replies: Reply, certificate: Path | None = None, address: str = "127.0.0.1") -> None:
        self.got: list[Got] = []
        self.names: list[str | None] = []
        """What each TLS client asked for (SNI)."""
        self._replies = list(replies) or [Reply()]
        self._server = ThreadingHTTPServer((address, 0), self._handler())
        self._scheme = "http"
        if certificate is not None:
            context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
            context.load_cert_chain(certificate)
            context.sni_callback = lambda _socket, name, _context: self.names.append(name)
            self._server.socket = context.wrap_socket(self._server.socket, server_side=True)
            self._scheme = "https"
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.02,), name="receiver")

    @property
    def port(self) -> int:
        return int(self._server.server_address[1])

    @property
    def url(self) -> str:
        return f"{self._scheme}://{self._server.server_address[0]!s}:{self.port}/hook?team=a"

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()

    def wait(self, count: int, within_s: float = PATIENCE_S) -> list[Got]:
        """What it got, once that is so many requests. Fails when they do not come."""
        until = time.monotonic() + within_s
        while len(self.got) < count and time.monotonic() < until:
            time.sleep(0.01)
        assert len(self.got) >= count, f"{len(self.got)} requests of {count} came"
        return list(self.got)

    def _handler(self) -> type[BaseHTTPRequestHandler]:
        receiver = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["Content-Length"]))
                receiver.got.append(Got(self.path, {name.lower(): value for name, value in self.headers.items()}, body))
                replies = receiver._replies
                reply = replies.pop(0) if len(replies) > 1 else replies[0]
                reply.before()
                self.send_response(reply.status)
                for name, value in reply.headers.items():
                    self.send_header(name, value)
                self.send_header("Content-Length", str(len(reply.body)))
                self.end_headers()
                try:
                    self._send(reply)
                except (BrokenPipeError, ConnectionResetError, ssl.SSLError):
                    return  # it has read enough

            def _send(self, reply: Reply) -> None:
                if not reply.drip_s:
                    self.wfile.write(reply.body)
                    return
                for byte in reply.body:
                    time.sleep(reply.drip_s)
                    self.wfile.write(bytes([byte]))

            def log_message(self, format: str, *args: object) -> None:
                return

        return Handler


def certificate_for(folder: Path, name: str) -> Path:
    """A certificate that vouches for itself, for a host's name or address, with its key in the same file."""
    key = ec.generate_private_key(ec.SECP256R1())
    subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "receiver of the tests")])
    now = datetime.now(UTC)
    try:
        alternative: x509.GeneralName = x509.IPAddress(ip_address(name))
    except ValueError:
        alternative = x509.DNSName(name)
    certificate = (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(subject)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - timedelta(hours=1))
        .not_valid_after(now + timedelta(days=1))
        .add_extension(x509.SubjectAlternativeName([alternative]), critical=False)
        .add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
        .sign(key, hashes.SHA256())
    )
    private = key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
    path = folder / f"{name.replace(':', '-')}.pem"
    path.write_bytes(certificate.public_bytes(serialization.Encoding.PEM) + private)
    return path
