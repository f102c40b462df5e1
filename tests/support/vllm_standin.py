"""A server that speaks as vLLM does, above our own engine, in a process of its own: for tests that break servers.

Its model is a tiny one or, where it is started as a program, that of a directory, computed by a page of NumPy; its
adapters are read from their files, its tokens and log-probs are real. What a test wants of it beside that comes with
POST /break: {"after": tokens} ends the process in the middle of a reply, {"refuse": true} lets it load no adapter,
{"stale": true} lets it go on with the adapter it has, {"forget": true} takes its adapters away, {"mute": true} leaves
log-probs out of what adapters say. GET /loads has what it was told to load, each time.
"""

from __future__ import annotations

import asyncio
import json
import os
import sys
from collections.abc import AsyncIterator, Sequence
from pathlib import Path
from typing import Any

import uvicorn
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response, StreamingResponse
from starlette.routing import Route
from support.plain_llama import PlainLlama
from support.ports import free_port
from support.warm_process import Process

from airloop.engine.base import Sampling
from airloop.engine.vllm.plugin.adapters import KEY, Adapters
from airloop.engine.vllm.server import BASE, ROUTES, VllmServer
from airloop.engine.vllm.version import MINOR


class StandIn:
    def __init__(self, kind: str, context: int) -> None:
        self.kind, self.context = kind, context
        self.engines: dict[str, Any] = {BASE: self.engine(None)}
        self.broken: dict[str, Any] = {}
        self.told = 0
        self.asked: list[str] = []  # adapters that it was told to load, each time
        key = os.environ.get(KEY)
        self.adapters = Adapters(key) if key else None  # as vLLM has it, with our plugin

    def engine(self, adapter: Path | None) -> Any:
        """Imported here: a stand-in that is started as a program has another, and would wait seconds for this one."""
        from airloop.engine.embedded import EmbeddedEngine
        from airloop.learn.lora import load_lora, use_fp32_adapters
        from airloop.models.head import logits_head
        from airloop.models.tiny import tiny_model
        from airloop.policy import Policy

        model = tiny_model(self.kind).model
        peft = load_lora(model, adapter) if adapter else None
        if adapter:
            use_fp32_adapters(model)
        room = {"context": self.context, "kv_tokens": max(2 * self.context, 16384), "page_size": 8}
        return EmbeddedEngine(Policy(model, logits_head(model), peft), **room)

    async def load(self, request: Request) -> Response:
        asked = await request.json()
        self.asked.append(asked["lora_name"])
        if self.broken.get("refuse"):
            return JSONResponse({"error": {"message": "no room"}}, 400)
        if asked["lora_name"] in self.engines:
            return JSONResponse({"error": {"message": "The lora adapter has already been loaded."}}, 400)
        if not Path(asked["lora_path"]).is_dir():
            return JSONResponse({"error": {"message": "No adapter found"}}, 404)
        last = list(self.engines.values())[-1]
        self.engines[asked["lora_name"]] = last if self.broken.get("stale") else self.engine(Path(asked["lora_path"]))
        return Response("Success")

    async def resolve(self, name: str) -> Response | None:
        """None where it has the model, after asking our plugin; else what vLLM answers then."""
        if name in self.engines:
            return None
        try:
            if self.adapters is None or "@" not in name:
                return JSONResponse({"error": {"message": f"{name} does not exist"}}, 404)
            self.engines[name] = self.engine(await asyncio.to_thread(self.adapters.pull, name))
            return None
        except ValueError as error:
            return JSONResponse({"error": {"message": str(error)}}, 400)
        except OSError as error:
            return JSONResponse({"error": {"message": str(error)}}, 500)

    async def tokenize(self, request: Request) -> Response:
        return await self.resolve((await request.json())["model"]) or JSONResponse({"tokens": [1]})

    async def unload(self, request: Request) -> Response:
        found = self.engines.pop((await request.json())["lora_name"], None)
        return Response("Success") if found else JSONResponse({"error": {}}, 404)

    async def generate(self, request: Request) -> Response:
        asked = await request.json()
        if len(salt := asked.get("cache_salt") or "") > 128 or "@" in salt:
            return JSONResponse({"error": {"message": "Parameter 'cache_salt' must not contain '@'"}}, 400)
        return await self.resolve(asked["model"]) or StreamingResponse(
            self._pieces(asked), media_type="text/event-stream"
        )

    def engine_of(self, asked: dict[str, Any]) -> Any:
        return self.engines[asked["model"]]

    async def _pieces(self, asked: dict[str, Any]) -> AsyncIterator[bytes]:
        given, engine = asked["sampling_params"], self.engine_of(asked)
        ids: list[int] = list(asked["token_ids"])
        for place in range(given["max_tokens"]):  # one by one, as a server that is busy does
            sampling = Sampling(1, given.get("temperature", 1.0), seed=given.get("seed", 0) + place)
            reply = await engine.generate(ids, sampling)
            ids += reply.token_ids
            self.told += 1
            if 0 < self.broken.get("after", 0) <= self.told:
                os._exit(9)
            stop = ids[-1] in given.get("stop_token_ids", ())
            mute = self.broken.get("mute") and asked["model"] != BASE
            known = {"token": f"token_id:{ids[-1]}", "logprob": reply.logprobs[0]}
            content = [] if mute else [{**known, "top_logprobs": [known]}]
            ended = "stop" if stop else "length" if place + 1 == given["max_tokens"] else None
            choice = {"index": 0, "token_ids": [ids[-1]], "logprobs": {"content": content}, "finish_reason": ended}
            usage = {"prompt_tokens": len(asked["token_ids"]), "completion_tokens": place + 1}
            more = {"usage": usage} if (asked.get("stream_options") or {}).get("continuous_usage_stats") else {}
            yield f"data: {json.dumps({'choices': [choice], **more})}\n\n".encode()
            if stop:
                break
            await asyncio.sleep(0)
        yield b"data: [DONE]\n\n"

    async def broke(self, request: Request) -> Response:
        self.broken = await request.json()
        if self.broken.get("forget"):
            self.engines = {BASE: self.engines[BASE]}
        self.told = 0
        return Response("")

    def app(self) -> Starlette:
        async def health(request: Request) -> Response:
            return Response("")

        async def routes(request: Request) -> Response:
            return JSONResponse({"paths": {route: {} for route in ROUTES}})

        async def models(request: Request) -> Response:
            return JSONResponse({"data": [{"id": BASE, "max_model_len": self.context}]})

        async def version(request: Request) -> Response:
            told = os.environ.get("STANDIN_VERSION", MINOR + ".0")
            return JSONResponse({"version": told} if told else {}, 200 if told else 404)

        async def loads(request: Request) -> Response:
            return JSONResponse(self.asked)

        return Starlette(
            routes=[
                Route("/loads", loads),
                Route("/version", version),
                Route("/health", health),
                Route("/openapi.json", routes),
                Route("/v1/models", models),
                Route("/v1/load_lora_adapter", self.load, methods=["POST"]),
                Route("/v1/unload_lora_adapter", self.unload, methods=["POST"]),
                Route("/tokenize", self.tokenize, methods=["POST"]),
                Route("/inference/v1/generate", self.generate, methods=["POST"]),
                Route("/break", self.broke, methods=["POST"]),
            ]
        )


def main(port: int, kind: str, context: int = 256, host: str = "127.0.0.1") -> None:
    uvicorn.run(StandIn(kind, context).app(), host=host, port=port, log_level="warning")


class StandInProgram(StandIn):
    """Of a model's directory, in a process that has imported next to nothing."""

    def engine(self, adapter: Path | None) -> PlainLlama:
        return PlainLlama(Path(self.kind), adapter)


def main_as_vllm(words: Sequence[str]) -> None:
    """With the words that vLLM is started with."""
    given = {name: words[place + 1] for place, name in enumerate(words[:-1])}
    stands_in = StandInProgram(given["--model"], int(given["--max-model-len"]))
    uvicorn.run(stands_in.app(), host=given["--host"], port=int(given["--port"]), log_level="warning")


def interpreter(folder: Path) -> Path:
    """A program in the place of one that has vLLM: what it starts is a stand-in, once no file `closed` is beside it."""
    script = folder / "python"
    code = "import sys; from support.vllm_standin import main_as_vllm; main_as_vllm(sys.argv)"
    tests = Path(__file__).parent.parent
    wait = f"while [ -e '{folder}/closed' ]; do sleep 0.05; done"
    script.write_text(f"#!/bin/sh\n{wait}\nexport PYTHONPATH={tests}\nexec {sys.executable} -c '{code}' \"$@\"\n")
    script.chmod(0o755)
    return script


class StandInServer(VllmServer):
    """Forked from a process that has imported everything already: what keeps a real one is tested by itself."""

    process: Process | None = None

    def start(self) -> None:
        self.starts += 1
        self._adapters.clear()
        port = self.url.rpartition(":")[2]
        env = {**os.environ, **self.env}
        self.process = Process([], code=f"from support.vllm_standin import main; main({port}, 'llama')", env=env)

    def ended(self) -> int | None:
        return self.process.poll() if self.process else None

    async def end(self) -> None:
        if self.process:
            self.process.kill()
            while self.process.poll() is None:  # noqa: ASYNC110 - one thread asks for all that were forked
                await asyncio.sleep(0.02)


def stand_in(**more: Any) -> StandInServer:
    return StandInServer(f"http://127.0.0.1:{free_port()}", "key", command=["stand-in"], **more)
