"""The viewer's server: routes, answers, and starting and stopping it."""

from __future__ import annotations

import json
import socket
import threading
import time
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any
from urllib.parse import quote

from airloop.errors import AirError
from airloop.serve.server import bind_socket
from airloop.text.keys import stream_without_keys, without_keys
from airloop_view.api import LARGEST, Api, NotFound, Query, as_json
from airloop_view.episode import Unreadable
from airloop_view.folder import Folder
from airloop_view.guard import Guard, choose_token
from airloop_view.index import Index
from airloop_view.store import Store
from airloop_view.watch import FolderWatcher

if TYPE_CHECKING:
    import uvicorn
    from starlette.applications import Starlette
    from starlette.requests import Request
    from starlette.responses import Response

STATIC = Path(__file__).parent / "static"
START_S = 20.0
QUEUED = 512  # connections that the system holds while we are busy
MOST_THREADS = 8  # that answer: each keeps a connection to the index, and its last searches


@dataclass(frozen=True)
class Options:
    directory: Path
    host: str = "127.0.0.1"
    port: int = 0
    token: str | None = None
    price_per_hour: float | None = None


class Viewer:
    """Everything behind the page: the index, the thread that keeps it, and the server."""

    def __init__(self, options: Options) -> None:
        self.folder = Folder(options.directory)
        self.token = choose_token(options.host, options.token)
        self._socket = bind_socket(options.host, options.port)
        self._socket.listen(128)
        self.host, self.port = options.host, int(self._socket.getsockname()[1])
        self.store = Store(self.folder.root / self.folder.only if self.folder.only else self.folder.root)
        self.index = Index(self.folder, self.store)
        self.watch = FolderWatcher(self.index)
        self.api = Api(self.folder, self.index, options.price_per_hour)
        self._server: uvicorn.Server | None = None

    @property
    def url(self) -> str:
        """As a browser on this machine opens it."""
        host = "127.0.0.1" if self.host in ("0.0.0.0", "") else "[::1]" if self.host == "::" else self.host
        host = f"[{host}]" if ":" in host and not host.startswith("[") else host
        return f"http://{host}:{self.port}/" + (f"?token={quote(self.token, safe='')}" if self.token else "")

    @property
    def url_elsewhere(self) -> str:
        """As one on another machine opens it."""
        own = self.host in ("0.0.0.0", "", "::")
        return self.url.replace(self.url.split("/")[2], f"{socket.gethostname()}:{self.port}", 1) if own else self.url

    def run(self) -> None:
        """Serves until it is told to stop, by Ctrl-C or by stop()."""
        import uvicorn

        from airloop.serve.connections import BACKLOG, LimitedConnection, quiet_logs

        app = Guard(make_app(self), host=self.host, port=self.port, token=self.token)
        config = uvicorn.Config(
            app,
            http=LimitedConnection,
            ws="none",
            backlog=BACKLOG,
            log_level="warning",
            access_log=False,
            timeout_graceful_shutdown=2,
            server_header=False,
            lifespan="off",
        )
        self._server = _Server(config, self.watch.release, self.index)
        self.watch.start()
        try:
            with quiet_logs():
                self._server.run(sockets=[self._socket])
        finally:
            self.close()

    def stop(self) -> None:
        self.index.stopping.set()
        if self._server is not None:
            self._server.should_exit = True
        self.watch.release()

    def close(self) -> None:
        self.watch.stop()
        self.store.close()
        self._socket.close()

    @property
    def started(self) -> bool:
        return self._server is not None and self._server.started


def _Server(config: Any, release: Callable[[], None], index: Index) -> Any:
    import anyio.to_thread
    import uvicorn

    class Server(uvicorn.Server):
        """Open pages hold a stream that never ends: they are let go before the server waits for them."""

        async def startup(self, sockets: Any = None) -> None:
            anyio.to_thread.current_default_thread_limiter().total_tokens = MOST_THREADS
            await super().startup(sockets)
            for listening in sockets or ():
                listening.listen(QUEUED)  # the system's own queue; the loop takes no more than BACKLOG from it at once

        async def shutdown(self, sockets: Any = None) -> None:
            index.stopping.set()
            release()
            await super().shutdown(sockets)

    return Server(config)


@contextmanager
def serving(options: Options, wait_for_index: bool = True) -> Iterator[Viewer]:
    """A viewer in a thread of this process."""
    viewer = Viewer(options)
    thread = threading.Thread(target=viewer.run, name="air-view", daemon=True)
    thread.start()
    deadline = time.monotonic() + START_S
    while not viewer.started and thread.is_alive() and time.monotonic() < deadline:
        time.sleep(0.01)
    if wait_for_index:
        viewer.watch.looked_once.wait(START_S)
    try:
        yield viewer
    finally:
        viewer.stop()
        thread.join(timeout=START_S)


# --- routes -------------------------------------------------------------------------------------------------


def make_app(viewer: Viewer) -> Starlette:
    from starlette.applications import Starlette
    from starlette.routing import Mount, Route
    from starlette.staticfiles import StaticFiles

    api = viewer.api
    named = ("about", "runs", "run", "trajectories", "neighbours", "group", "trajectory", "tokens", "names", "text")
    routes: list[Any] = [Route(f"/api/{name}", _json(getattr(api, name))) for name in named]
    routes += [
        Route("/api/raw", _guarded(lambda query: _streamed(api.raw(query), "application/json", "trajectory.json"))),
        Route("/api/events", _events(viewer.watch)),
        Route("/export", _guarded(lambda query: _export(api, query))),
        Route("/plotly.js", _plotly),
        Route("/", _page),
        Mount("/static", StaticFiles(directory=STATIC)),
    ]
    return Starlette(routes=routes, exception_handlers={404: _no_page})


def _json(answer: Callable[[Query], dict[str, Any]]) -> Callable[[Request], Response]:
    def respond(query: Query) -> Response:
        return json_response(answer(query))

    return _guarded(respond)


def _guarded(respond: Callable[[Query], Response]) -> Callable[[Request], Response]:
    """Errors as sentences; run in a thread, so that a slow answer holds nobody else up."""

    def handle(request: Request) -> Response:
        params = request.query_params
        query = {name: params.getlist(name) for name in params}
        try:
            return respond(query)
        except NotFound as error:
            return json_response({"error": error.problem, "fix": error.fix}, 404)
        except AirError as error:
            return json_response({"error": error.problem, "fix": error.fix}, 400)
        except (Unreadable, RecursionError) as error:
            return json_response({"error": str(error), "fix": "look at the file itself."}, 422)

    return handle


def json_response(value: dict[str, Any], status: int = 200) -> Response:
    from starlette.responses import Response

    body = without_keys(as_json(value).decode()).encode()
    if len(body) > LARGEST:
        error = {
            "error": f"The answer would have {len(body)} bytes.",
            "fix": "ask for less of it, or for the file itself.",
        }
        return json_response(error, 413)
    return Response(body, status, {"cache-control": "no-store"}, "application/json")


def _file(body: bytes, kind: str, name: str) -> Response:
    from starlette.responses import Response

    return Response(body, 200, _attached(name), kind)


def _streamed(file: IO[bytes], kind: str, name: str) -> Response:
    """Piece by piece: whoever is slow to take a large file must not have it lie here meanwhile."""
    from starlette.responses import StreamingResponse

    def pieces() -> Iterator[bytes]:
        with file:
            yield from stream_without_keys(iter(lambda: file.read(1 << 18), b""))

    return StreamingResponse(pieces(), 200, _attached(name), kind)


def _attached(name: str) -> dict[str, str]:
    return {"cache-control": "no-store", "content-disposition": f'attachment; filename="{name}"'}


def _export(api: Api, query: Query) -> Response:
    from airloop_view.export_page import export

    name, page = export(api, query)
    return _file(without_keys(page).encode("utf-8", "replace"), "text/html; charset=utf-8", name)


def _events(watch: FolderWatcher) -> Callable[[Request], Any]:
    from starlette.responses import Response, StreamingResponse

    async def stream() -> AsyncIterator[bytes]:
        async for changed in watch.changes():
            if changed is None:
                yield b": here\n\n"
            else:
                yield f"event: change\ndata: {json.dumps({'runs': changed})}\n\n".encode()

    async def respond(request: Request) -> Response:
        if request.method == "HEAD":
            return Response(media_type="text/event-stream")
        if watch.full():
            return json_response({"error": "Too many pages are open.", "fix": "close some of them."}, 503)
        return StreamingResponse(stream(), media_type="text/event-stream", headers={"cache-control": "no-store"})

    return respond


def _plotly(_: Request) -> Response:
    from starlette.responses import FileResponse

    return FileResponse(plotly_file(), media_type="text/javascript", headers={"cache-control": "max-age=86400"})


def plotly_file() -> Path:
    """The script that the installed plotly package brings; importing the package itself takes long."""
    import importlib.util

    spec = importlib.util.find_spec("plotly")
    assert spec is not None and spec.submodule_search_locations
    return Path(spec.submodule_search_locations[0]) / "package_data" / "plotly.min.js"


def _page(_: Request) -> Response:
    from starlette.responses import FileResponse

    return FileResponse(STATIC / "index.html", media_type="text/html", headers={"cache-control": "no-cache"})


def _no_page(request: Request, _: Exception) -> Response:
    return json_response({"error": f"There is nothing at {request.url.path[:120]}.", "fix": "begin at /."}, 404)
