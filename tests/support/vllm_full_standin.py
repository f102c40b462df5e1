"""A stand-in of vLLM (vllm_standin.py) that gets all its weights anew, with the ways in which vLLM goes wrong there.

As vLLM does: an update that fails half-way leaves it healthy by its own words, and the next request that it computes
kills it; its cache knows nothing of weights, only of salts. What a test breaks, by POST /break: {"half": n} lets n
updates fail half-way, {"behind": true} lets it say that it has the new weights and keep the old, {"label": true} lets
it keep the old label, {"cache": true} lets nothing clear its cache. GET /steps has what it was told, in order.
"""

from __future__ import annotations

import asyncio
import os
from pathlib import Path
from typing import Any

import uvicorn
from safetensors.torch import load_file
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route
from support.ports import free_port
from support.vllm_standin import StandIn, StandInServer
from support.warm_process import Process

from airloop.engine.embedded import EmbeddedEngine
from airloop.engine.vllm.full import STEPS, FullServer
from airloop.engine.vllm.plugin.weights import file_digest
from airloop.models.head import logits_head
from airloop.models.tiny import tiny_model
from airloop.policy import Policy


class FullStandIn(StandIn):
    def __init__(self, kind: str, context: int) -> None:
        super().__init__(kind, context)
        model = tiny_model(kind).model
        self.policy = Policy(model, logits_head(model), None)
        self.caches: dict[str, EmbeddedEngine] = {}  # by salt: the weights are the same, what is cached is not
        self.running = asyncio.Event()
        self.running.set()
        self.label, self.steps = "", list[str]()
        self.updating = self.hurt = False

    async def step(self, request: Request) -> Response:
        route = request.url.path
        self.steps.append(route)
        if route == "/pause":
            self.running.clear()
        elif route == "/resume":
            self.running.set()
        elif route == "/start_weight_update":
            if self.updating:
                return JSONResponse({"error": {"message": "a weight update is already active"}}, 500)
            self.updating = True
        elif route == "/update_weights":
            return self.update((await request.json())["update_info"])
        elif route == "/finish_weight_update":
            if not self.updating or self.broken.get("finish", 0) > 0:
                self.broken["finish"] = self.broken.get("finish", 0) - self.updating
                return JSONResponse({"error": {"message": "no update is active, or it cannot be finished"}}, 500)
            self.label = self.label if self.broken.get("label") else (await request.json())["weight_version"]
            self.updating = self.hurt = False
        if route in ("/pause", "/reset_prefix_cache") and not self.broken.get("cache"):
            self.caches.clear()
        return JSONResponse({})

    def update(self, info: dict[str, str]) -> Response:
        if not self.updating:
            return JSONResponse({"error": {"message": "start_weight_update must be called before"}}, 500)
        if file_digest(Path(info["path"])) != info["digest"]:
            self.updating = False
            return JSONResponse({"error": {"message": "the file of weights has the digest"}}, 500)
        if self.broken.get("behind"):
            return JSONResponse({})
        weights = load_file(info["path"])
        if self.broken.get("half", 0) > 0:
            self.broken["half"] -= 1
            self.updating, self.hurt = False, True
            self.policy.model.load_state_dict(dict(list(weights.items())[: len(weights) // 2]), strict=False)
            return JSONResponse({"error": {"message": "it broke off"}}, 500)
        self.policy.model.load_state_dict(weights, strict=False)
        return JSONResponse({})

    async def generate(self, request: Request) -> Response:
        await self.running.wait()
        if self.hurt:
            os._exit(9)
        return await super().generate(request)

    def engine_of(self, asked: dict[str, Any]) -> EmbeddedEngine:
        salt = str(asked.get("cache_salt") or "")
        if salt not in self.caches:
            room: dict[str, Any] = {"context": self.context, "kv_tokens": 16384, "page_size": 8}
            self.caches[salt] = EmbeddedEngine(self.policy, **room)
        return self.caches[salt]

    def app(self) -> Starlette:
        async def told(request: Request) -> Response:
            return JSONResponse(self.steps)

        async def info(request: Request) -> Response:
            return JSONResponse({"weight_version": self.label})

        async def routes(request: Request) -> Response:
            return JSONResponse({"paths": {route: {} for route in FullServer.routes}})

        app = super().app()
        own = [Route("/steps", told), Route("/weight_info", info), Route("/openapi.json", routes)]
        app.router.routes[:0] = [*own, *(Route(step, self.step, methods=["POST"]) for step in STEPS)]
        return app


def main(port: int, kind: str, context: int = 256) -> None:
    uvicorn.run(FullStandIn(kind, context).app(), host="127.0.0.1", port=port, log_level="warning")


class FullStandInServer(FullServer, StandInServer):
    def start(self) -> None:
        self.starts += 1
        self._adapters.clear()
        port = self.url.rpartition(":")[2]
        self.process = Process([], code=f"from support.vllm_full_standin import main; main({port}, 'llama')")


def full_stand_in() -> FullStandInServer:
    return FullStandInServer(f"http://127.0.0.1:{free_port()}", "key", command=["stand-in"])
