"""`air serve`: a model or a trained policy behind OpenAI's interface."""

from __future__ import annotations

import asyncio
import ipaddress
import os
import secrets
from typing import TYPE_CHECKING, Annotated

import typer

from airloop import interrupts
from airloop.commands.common import begin
from airloop.commands.help import asks_for_help, print_help
from airloop.errors import AirError
from airloop.text.keys import note_keys

if TYPE_CHECKING:
    from airloop.eval.agents import AgentSpec, LoadedAgent
    from airloop.serve.app import Endpoint
    from airloop.watch.display.display import Display

KEY = "AIR_API_KEY"  # in the environment
SERVE_HELP = """air serve --agent run:DIR [options] [@ config.toml --key value …]

A trained policy, or any model, behind the interfaces that agents speak: OpenAI's /v1/chat/completions, /v1/responses
and /v1/models, Anthropic's /v1/messages, and /inference/v1/generate, which takes and gives token ids.

  --agent WHO      run:DIR[@STEP|@best] (a run's policy), a model's name or file, or model (the config's)
  --host HOST      default: 127.0.0.1, which only this machine reaches; others need --api-key
  --port PORT      default: 8000; 0: any that is free
  --api-key KEY    what clients must send; better in the environment variable AIR_API_KEY, as everybody on this machine
                   can read a command line

Keys:"""


def serve(
    context: typer.Context,
    agent: Annotated[str, typer.Option()] = "model",
    host: Annotated[str, typer.Option()] = "127.0.0.1",
    port: Annotated[int, typer.Option(min=0, max=65535)] = 8000,
    api_key: Annotated[str | None, typer.Option()] = None,
) -> None:
    """Serve a trained policy or a model to OpenAI's clients: air serve --agent run:DIR."""
    if asks_for_help(context.args):
        print_help(SERVE_HELP, context.args)
    note_keys(api_key)
    key = api_key or os.environ.get(KEY)
    if not key and not _only_here(host):
        raise AirError(
            f"Whoever reaches {host} could use the model.",
            f"export {KEY}=… (or add --api-key), or serve on 127.0.0.1 (the default).",
        )
    from airloop.watch.display.display import Display

    with Display() as display:
        begin(display, f"air serve: {agent}")
        if api_key:
            display.say(f"Everybody on this machine can read --api-key in the command line: {KEY}=… hides it.")
        try:
            interrupts.run(_serve(agent, list(context.args), host, port, key, display))
        except KeyboardInterrupt:
            display.say("air serve: ended.")


def _only_here(host: str) -> bool:
    try:
        return ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return host == "localhost"


async def _serve(agent: str, argv: list[str], host: str, port: int, key: str | None, display: Display) -> None:
    from airloop.eval.agents import load_agent
    from airloop.serve.server import serving

    player = find_policy(agent, argv)
    display.phase("loading the model")
    loaded = load_agent(player, display.say, envs={})
    try:
        async with serving(open_endpoint(loaded, key).app(), host, port) as url:
            display.ready()  # for hours, and nothing is waited for
            display.say(f"serving {player.label} at {url}/v1 (Ctrl-C ends it)")
            await asyncio.Event().wait()
    finally:
        await loaded.close()


def find_policy(agent: str, argv: list[str]) -> AgentSpec:
    """Of `run:DIR`, `model`, or the name of any model."""
    from airloop.eval.agents import UrlOptions, find_agent

    kind = agent.partition(":")[0]
    if kind in ("url", "scripted"):
        raise AirError(f"{agent} has no weights to serve.", "use run:DIR, a model's name, or model with a config.")
    if agent == "model" or kind == "run":
        return find_agent(agent, argv, UrlOptions())
    return find_agent("model", [*argv, "--model.name", agent], UrlOptions())


def open_endpoint(loaded: LoadedAgent, api_key: str | None) -> Endpoint:
    """One for everybody: each request is a conversation by itself, sampled as its client asks."""
    from airloop.engine.base import Sampling
    from airloop.serve.app import Endpoint
    from airloop.serve.episode import ServedEpisode

    parts, config = loaded.parts, loaded.player.config
    assert parts is not None
    own = config.orchestrator.sampling
    sampling = Sampling(config.seq_len, own.temperature, own.top_p, own.top_k, own.min_p)

    def anyone() -> ServedEpisode:
        seed, parser = secrets.randbits(31), config.inference.model.tool_call_parser
        order = secrets.token_hex(4)
        return ServedEpisode(parts.engine, parts.loaded.tokenizer, sampling, seed, order, parser, training=False)

    return Endpoint(loaded.player.label, anyone, api_key or None)
