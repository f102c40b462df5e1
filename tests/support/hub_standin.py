"""A hub on loopback: as much of its HTTP interface as making a repository and uploading a folder take."""

from __future__ import annotations

import base64
import json
import re
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from hashlib import sha256
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

TOKEN = "hf_standin0123456789"
OWNER = "ada"  # whose token it is


@dataclass
class Hub:
    """`files` by repository and path; `dies_at` is the part of an address at which it hangs up, for ever."""

    url: str = ""
    private: dict[str, bool] = field(default_factory=dict)
    files: dict[str, dict[str, bytes]] = field(default_factory=dict)
    stored: dict[str, bytes] = field(default_factory=dict)
    asked: list[str] = field(default_factory=list)
    dies_at: str = ""

    def answer(self, method: str, path: str, body: bytes) -> tuple[int, Any]:
        if path == "/api/repos/create":
            return self.create(json.loads(body))
        if path == "/api/validate-yaml":
            return 200, {"errors": [], "warnings": []}
        if put := re.fullmatch(r"/stored/(\w+)", path):
            good = sha256(body).hexdigest() == put[1]
            self.stored[put[1]] = body
            return (200, {}) if good else (400, {"error": "another file"})
        found = re.match(r"(?:/api/models)?/([\w.-]+/[\w-]+)(.*)", path)
        assert found, path
        name, rest = found[1], found[2]
        if name not in self.private:
            return 404, {"error": "Repository not found"}
        if rest.startswith("/preupload/"):
            return 200, {"files": [self.mode(file) for file in json.loads(body)["files"]]}
        if rest == ".git/info/lfs/objects/batch":
            return 200, {"transfer": "basic", "objects": [self.place(each) for each in json.loads(body)["objects"]]}
        if rest.startswith("/commit/"):
            return self.commit(name, [json.loads(line) for line in body.splitlines()])
        return 200, {"id": name, "private": self.private[name], "siblings": [], "tags": []}

    def create(self, asked: dict[str, Any]) -> tuple[int, Any]:
        name = f"{asked['organization']}/{asked['name']}"
        if asked["organization"] != OWNER:
            return 403, {"error": f"{OWNER} may not write there"}
        if name in self.private:
            return 409, {"error": "You already created this model repo", "url": f"{self.url}/{name}"}
        self.private[name], self.files[name] = asked.get("visibility") == "private" or bool(asked.get("private")), {}
        return 200, {"url": f"{self.url}/{name}", "name": name}

    def mode(self, file: dict[str, Any]) -> dict[str, Any]:
        large = file["path"].endswith((".gguf", ".safetensors", ".png"))
        return {"path": file["path"], "uploadMode": "lfs" if large else "regular", "shouldIgnore": False, "oid": None}

    def place(self, asked: dict[str, Any]) -> dict[str, Any]:
        actions = {"upload": {"href": f"{self.url}/stored/{asked['oid']}", "header": {}}}
        return {**asked, **({} if asked["oid"] in self.stored else {"actions": actions})}

    def commit(self, name: str, lines: list[dict[str, Any]]) -> tuple[int, Any]:
        for line in lines:
            value = line["value"]
            if line["key"] == "file":
                self.files[name][value["path"]] = base64.b64decode(value["content"])
            elif line["key"] == "lfsFile":
                self.files[name][value["path"]] = self.stored[value["oid"]]
        return 200, {"commitUrl": f"{self.url}/{name}/commit/1", "commitOid": "1", "pullRequestUrl": None}


@contextmanager
def hub_standin() -> Iterator[Hub]:
    hub = Hub()

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def handle_any(self) -> None:
            body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
            path = self.path.partition("?")[0]
            hub.asked.append(f"{self.command} {path}")
            if hub.dies_at and hub.dies_at in path:
                self.close_connection = True
                self.connection.close()
                return
            # What is stored goes to an address that is signed by itself.
            known = path.startswith("/stored/") or self.headers.get("Authorization") == f"Bearer {TOKEN}"
            status, said = hub.answer(self.command, path, body) if known else (401, {"error": "Invalid credentials"})
            data = json.dumps(said).encode()
            self.send_response(status)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(data)))
            self.end_headers()
            self.wfile.write(data)

        do_GET = do_POST = do_PUT = do_HEAD = handle_any

        def log_message(self, *_: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    hub.url = f"http://127.0.0.1:{server.server_port}"
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield hub
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
