"""An HTTP server of adapters, for vLLM servers that do not see this machine's files: they fetch adapters by our plugin
(airloop/engine/vllm/plugin), authenticated by a shared key.

It has threads of its own: the run's event loop may be busy for seconds when a server asks.
"""

from __future__ import annotations

import contextlib
import hmac
import json
import shutil
import socket
import threading
import urllib.parse
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from socketserver import TCPServer
from typing import Any

from airloop.engine.vllm.adapters import AdapterStore
from airloop.engine.vllm.plugin.adapters import FILES, LIST_ROUTE, PROOF, mac, signed
from airloop.errors import AirError

MOST_CONNECTIONS = 64  # connections at once
SILENT_S = 30.0  # for a connection that has not shown the key
LOOK_S = 0.1  # between two checks whether it is to end


class HttpAdapterStore(AdapterStore):
    """It listens from the first adapter on, until all are cleared."""

    def __init__(self, root: Path, base: str, older: int, key: str, host: str, port: int) -> None:
        super().__init__(root, base, older)
        self.key = key
        self._host, self._port = host, port
        self._http_server: _AdapterHttpServer | None = None

    def _called(self, name: str) -> str:
        if self._http_server is None:
            self._http_server = _AdapterHttpServer(self, self._host, self._port)
            threading.Thread(
                target=self._http_server.serve_forever, args=(LOOK_S,), name="adapters", daemon=True
            ).start()
        return signed(self.key, name, f"{self._host}:{self._http_server.server_address[1]}")

    def clear(self) -> None:
        super().clear()
        if self._http_server is not None:
            self._http_server.shutdown()
            self._http_server.server_close()
            self._http_server = None


class _AdapterHttpServer(ThreadingHTTPServer):
    daemon_threads = True
    block_on_close = False

    def __init__(self, store: HttpAdapterStore, host: str, port: int) -> None:
        self.store = store
        self._free = threading.BoundedSemaphore(MOST_CONNECTIONS)
        try:
            found = socket.getaddrinfo(host.strip("[]"), port, type=socket.SOCK_STREAM)[0]
            self.address_family = found[0]
            super().__init__(found[4][:2], _AdapterRequest)  # type: ignore[arg-type]
        except OSError as error:
            raise AirError(
                f"air cannot listen on {host}:{port} for servers that pull adapters: {error}.",
                "inference.vllm.adapters_host must be an address of this machine, adapters_port a free one.",
            ) from None

    def server_bind(self) -> None:
        TCPServer.server_bind(self)  # HTTPServer's own asks for this machine's name, which may take seconds

    def process_request(self, request: Any, client_address: Any) -> None:
        if not self._free.acquire(blocking=False):
            return self.shutdown_request(request)
        try:
            super().process_request(request, client_address)
        except BaseException:  # no thread was to be had
            self._free.release()
            raise

    def process_request_thread(self, request: Any, client_address: Any) -> None:
        try:
            super().process_request_thread(request, client_address)
        finally:
            self._free.release()

    def handle_error(self, request: Any, client_address: Any) -> None:
        """The client has hung up, or was too slow: it will ask again."""


class _AdapterRequest(BaseHTTPRequestHandler):
    timeout = SILENT_S
    server: _AdapterHttpServer

    def setup(self) -> None:
        """The timeout is for the whole request, not for each byte, until the key was shown."""
        super().setup()
        self._timer = threading.Timer(self.timeout, self._hang_up)
        self._timer.daemon = True
        self._timer.start()

    def _hang_up(self) -> None:
        with contextlib.suppress(OSError):
            self.connection.shutdown(socket.SHUT_RDWR)

    def finish(self) -> None:
        self._timer.cancel()
        super().finish()

    def do_GET(self) -> None:
        store, route = self.server.store, urllib.parse.unquote(self.path)
        if not hmac.compare_digest(self.headers.get(PROOF, "").encode(), mac(store.key, "get", route).encode()):
            return self._say(403, b"another key")
        self._timer.cancel()
        if route == LIST_ROUTE:
            return self._say(200, json.dumps(store.names).encode())
        name, _, file = route.removeprefix("/").partition("/")
        if name not in store.names or file not in FILES:
            return self._say(404, b"no such adapter any more")
        try:
            with (store.root / name / file).open("rb") as opened:
                self._begin(200, opened.seek(0, 2))
                opened.seek(0)
                shutil.copyfileobj(opened, self.wfile, 1 << 20)
        except FileNotFoundError:  # it has just gone
            self._say(404, b"no such adapter any more")

    def _say(self, status: int, text: bytes) -> None:
        self._begin(status, len(text))
        self.wfile.write(text)

    def _begin(self, status: int, size: int) -> None:
        self.send_response(status)
        self.send_header("Content-Length", str(size))
        self.end_headers()

    def log_message(self, format: str, *args: Any) -> None:
        """Nothing: the terminal is the run's."""
