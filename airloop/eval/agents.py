"""Who plays in an evaluation: the config's model, a run's policy, a script, or a model behind a URL."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from airloop.assemble import Components, assemble, check_prompts, rollout_settings
from airloop.certificates import certificates_for
from airloop.config import Config, load_config
from airloop.environments import load_environments
from airloop.envs.base import Environment
from airloop.errors import AirError
from airloop.eval.trained import Checkpoint, config_of, open_trained, with_weights
from airloop.events import Say, Watcher
from airloop.rewards import with_run_rewards
from airloop.rollout.collected import AgentFactory, Save
from airloop.rollout.sampler import Sampler
from airloop.rollout.url_agent import Dialect, UrlAgent
from airloop.types import Agent, Task

KINDS = "model, run:DIR, run:DIR@STEP, scripted:NAME or url:http://HOST/v1"


@dataclass(frozen=True)
class UrlOptions:
    """Of a model behind a URL. Prices are per million tokens; None: not known."""

    model: str | None = None
    price_in: float | None = None
    price_out: float | None = None
    api_key_env: str | None = None


@dataclass(frozen=True)
class AgentSpec:
    name: str  # as it was asked for: "run:outputs/exp1.0-tune-1115"
    label: str  # short, fit for a directory's name
    model: str  # "" for a script
    config: Config
    checkpoint: Checkpoint | None = None
    base_url: str = ""
    url: UrlOptions = UrlOptions()

    @property
    def kind(self) -> str:
        return self.name.partition(":")[0]

    @property
    def is_policy(self) -> bool:
        """It is sampled in this process, from tokens."""
        return self.kind in ("model", "run")

    @property
    def version(self) -> int:
        return self.checkpoint.version if self.checkpoint else 0


def find_agent(name: str, argv: Sequence[str], url: UrlOptions) -> AgentSpec:
    """Everything that can be refused without loading anything."""
    kind, _, rest = name.partition(":")
    if kind != "url" and url != UrlOptions():
        given = [f"--{k.replace('_', '-')}" for k, v in vars(url).items() if v is not None]
        given = ["--url-model" if flag == "--model" else flag for flag in given]
        raise AirError(
            f"{', '.join(given)} says something about a model behind a URL, but the agent is {name!r}.",
            "leave it out, or give --agent url:http://…/v1.",
        )
    if kind == "run" and rest:
        run, checkpoint = open_trained(rest)
        config = config_of(run, list(argv))
        label = f"{run.name}-step{checkpoint.step}"
        own = with_run_rewards(with_weights(config, checkpoint), run)
        return AgentSpec(name, label, config.model.name, own, checkpoint)
    config = load_config(list(argv))
    if name == "model":
        return AgentSpec(name, _short(config.model.name), config.model.name, config)
    if kind == "scripted" and rest:
        return AgentSpec(name, _short(rest), "", config)
    if kind == "url" and rest:
        return _url_player(name, rest, config, url)
    raise AirError(f"There is no agent {name!r}.", f"use {KINDS}.")


def _url_player(name: str, base_url: str, config: Config, url: UrlOptions) -> AgentSpec:
    if not re.match(r"https?://", base_url):
        raise AirError(f"{base_url!r} is not a URL.", "write --agent url:http://127.0.0.1:8000/v1")
    if not url.model:
        raise AirError(
            f"Which model at {base_url}?",
            f"add --url-model NAME; GET {base_url.rstrip('/')}/models lists them.",
        )
    if (url.price_in is None) != (url.price_out is None):
        raise AirError(
            "A price of one kind of token only gives no cost.",
            "give both --price-in and --price-out (0 if free).",
        )
    sampling = config.orchestrator.sampling
    for key, off in (("top_p", 1.0), ("top_k", 0), ("min_p", 0.0)):
        if getattr(sampling, key) != off:
            raise AirError(
                f"orchestrator.sampling.{key} = {getattr(sampling, key)} cannot be asked of a model behind "
                "a URL: a server that does not know it would sample otherwise and not say so.",
                f"evaluate both sides with --orchestrator.sampling.{key} {off}.",
            )
    return AgentSpec(name, _short(url.model), url.model, config, base_url=base_url.rstrip("/"), url=url)


def _short(name: str) -> str:
    return re.sub(r"[^A-Za-z0-9.]+", "-", Path(name).name).strip("-.") or "agent"


@dataclass
class LoadedAgent:
    """A player, loaded and ready. `spent` are the URL agents it made, each with its tokens."""

    player: AgentSpec
    envs: dict[str, Environment]
    parts: Components | None = None
    spent: list[UrlAgent] = field(default_factory=list)
    dialect: Dialect = field(default_factory=Dialect)  # of the server behind a URL

    async def check(self, plan: list[Task], watcher: Watcher) -> None:
        """Refuses before the first episode what would spoil every one of them."""
        if self.parts is not None:
            await check_prompts(self.parts, plan, watcher)
        if self.player.base_url:
            await _answers(self.player)
        elif self.parts is None and plan:
            self.agents(0.0)(self.envs[plan[0].env], plan[0], 0)  # type: ignore[misc]  # is there such a script?

    def sampler(self, save: Save) -> Sampler:
        if self.parts is not None:
            return self.parts.sampler(save)
        return Sampler(None, None, self.envs, rollout_settings(self.player.config), save)

    def agents(self, temperature: float) -> AgentFactory | None:
        """None: the sampler's own policy."""
        player, name = self.player, self.player.name.partition(":")[2]

        def script(env: Environment, task: Task, seed: int) -> Agent:
            return env.scripted(name, task, seed)

        def url(env: Environment, task: Task, seed: int) -> Agent:
            agent = UrlAgent(
                player.base_url,
                player.model,
                player.url.api_key_env,
                player.url.price_in or 0.0,
                player.url.price_out or 0.0,
                temperature=temperature,
                max_tokens=player.config.orchestrator.sampling.max_tokens,
                seed=seed,
                dialect=self.dialect,
            )
            self.spent.append(agent)
            return agent

        return None if player.is_policy else url if player.base_url else script

    async def close(self) -> None:
        if self.parts is not None:
            await self.parts.close()
        else:
            for env in self.envs.values():
                await env.close()


def load_agent(player: AgentSpec, say: Say, envs: dict[str, Environment] | None = None) -> LoadedAgent:
    """`envs` in place of those that its config names."""
    if not player.is_policy:
        return LoadedAgent(player, load_environments(player.config) if envs is None else envs)
    parts = assemble(player.config, say, envs=envs)
    if player.checkpoint is not None:
        from airloop.learn.checkpoints import load_weights

        if player.checkpoint.adapter is None:
            load_weights(player.checkpoint.path, parts.learner)
        parts.policy.version = player.version
        parts.engine.set_version(player.version)
    for note in parts.notes:
        say(f"note: {note}")
    return LoadedAgent(player, parts.envs, parts)


async def _answers(player: AgentSpec) -> None:
    """Asked once, so that a server that is not there is told at once, not after every episode's retries."""
    import httpx

    try:
        async with httpx.AsyncClient(timeout=10, verify=certificates_for(player.base_url)) as client:
            await client.get(f"{player.base_url}/models")
    except httpx.TransportError as error:
        raise AirError(
            f"Nothing answers at {player.base_url}: {type(error).__name__} {error}".rstrip(),
            "start the server, or correct the URL in --agent url:…",
        ) from error


def describe(player: AgentSpec) -> Mapping[str, Any]:
    """What an evaluation's file says of its agent. The key's variable is not in it, let alone the key."""
    checkpoint = player.checkpoint
    return {
        "agent": player.name,
        "model": player.model,
        "checkpoint": str(checkpoint.path) if checkpoint else None,
        "version": player.version,
        "price_in": player.url.price_in,
        "price_out": player.url.price_out,
    }
