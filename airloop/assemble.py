"""From a config to the parts of a run: model, policy, engine, learner, environments, sampler."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import TYPE_CHECKING, Any

from airloop import interrupts
from airloop.config import Config, with_changes
from airloop.engine.base import Engine, Sampling
from airloop.environments import load_environments
from airloop.envs.base import Environment, Opening
from airloop.envs.contract import begin_session, open_session
from airloop.errors import AirError
from airloop.events import Say, Watcher
from airloop.ranks import Ranks
from airloop.rollout.collected import RolloutSettings, Save
from airloop.rollout.mixture import Curriculum
from airloop.rollout.sampler import Sampler
from airloop.rollout.schedule import TaskSchedule, stratified
from airloop.types import Task
from airloop.waits import waiting

if TYPE_CHECKING:
    from airloop.learn.learner import Learner, LearnerSettings
    from airloop.models.loaded import Loaded
    from airloop.plan import MemoryPlan
    from airloop.policy import Policy


@dataclass
class Components:
    config: Config
    loaded: Loaded
    policy: Policy
    engine: Engine
    learner: Learner
    envs: dict[str, Environment]
    notes: list[str] = field(default_factory=list)
    ranks: Ranks = field(default_factory=Ranks)

    def sampler(self, save: Save, schedule: TaskSchedule | None = None) -> Sampler:
        settings = rollout_settings(self.config, self.loaded.tokenizer.stop_ids, self.ranks.size)
        return Sampler(self.engine, self.loaded.tokenizer, self.envs, settings, save, schedule, self.ranks)

    async def close(self) -> None:
        await self.engine.close()
        for env in self.envs.values():
            await env.close()


@interrupts.at_once()
def assemble(
    config: Config, say: Say, ranks: Ranks | None = None, envs: dict[str, Environment] | None = None
) -> Components:
    """Cheap refusals first: environments and their tasks, then the model's small files, then its weights.
    On several ranks, each calls it and gets parts of its own. `envs` in place of the config's: none, for a policy that
    is only asked."""
    config = config.sampled_here()  # a rank's own config has no other machines in it
    envs = load_environments(config) if envs is None else envs
    for env in envs.values():
        env.warm()
    try:
        return _assemble(config, envs, say, ranks or Ranks())
    except BaseException:
        for env in envs.values():
            env.abandon()
        raise


def _assemble(config: Config, envs: dict[str, Environment], say: Say, ranks: Ranks) -> Components:
    from airloop.engine.make import engine_maker
    from airloop.learn.base_shards import shard
    from airloop.learn.learner import Learner

    settings = learner_settings(config)  # a loss of the user's own that is amiss is told before the model is loaded
    loaded = load_model(config, say)
    policy = make_policy(config, loaded)
    plan = _plan(config, policy, ranks.size)
    base = _base_shards(config, plan, ranks)
    if plan is not None and base and not plan.base_shards:  # it is another rank that must
        plan = _plan(with_changes(config, {"trainer.model.shard": True}), policy, ranks.size)
    shards = shard(policy, ranks, base)  # before the engine looks at the weights
    engine = engine_maker(config)(
        config,
        policy,
        loaded,
        ranks,
        say,
        kv_tokens=plan.kv_tokens if plan else None,
        lend=plan is not None and not plan.keep_kv,
        # It lays weights out anew, for good; those that are gathered from shards move with every update.
        own_forward=False if shards else None,
    )
    learner = Learner(policy, settings, ranks, shards)
    notes = [*config.warnings(), *loaded.notes]
    if policy.hold:
        slower = ", which runs through transformers' own layers, correct but slower"
        sampling = f"for sampling{slower}" if config.inference.own_weights else "between updates"
        notes.append(
            f"the frozen base is in shards while training, and gathered {sampling}; trainer.model.shard = false keeps "
            "it whole"
        )
    if engine.fallback_reason:
        notes.append(f"sampling runs through transformers' own layers, correct but slower: {engine.fallback_reason}")
    if plan is not None and not plan.fits:
        notes.append(
            f"the memory plan has a peak of {plan.peak / 2**30:.1f} GiB where {plan.available / 2**30:.1f} GiB are "
            "free: `air plan` on the same config says what to change"
        )
    if any(env.action_format == "tools" for env in envs.values()):
        notes += loaded.tokenizer.tool_notes
    return Components(config, loaded, policy, engine, learner, envs, notes, ranks)


def load_model(config: Config, say: Say) -> Loaded:
    from airloop.models import checks, loading

    dtype = "float32" if config.deterministic else config.model.dtype
    device: str = config.model.device
    if config.gpu is not None and device == "auto":
        device = f"cuda:{config.gpu}"
    loaded = loading.load(
        config.model.name, device=device, dtype=dtype, chat_template=config.model.chat_template, say=say
    )
    checks.check_context(loaded.model.config, config.seq_len, config.model.name)
    return loaded


def make_policy(config: Config, loaded: Loaded) -> Policy:
    import torch

    from airloop.determinism import pin
    from airloop.learn.lora import attach_lora, load_lora, use_fp32_adapters
    from airloop.models.dtypes import choose_kernels
    from airloop.models.fp32_matmul import are_slow, widen_products
    from airloop.models.head import check_head, logits_head
    from airloop.policy import Policy

    torch.manual_seed(config.seed)
    if config.deterministic:
        pin()
    else:
        choose_kernels()
    model, lora = loaded.model, config.trainer.model.lora
    widen_products(are_slow(model))
    check_head(model)
    peft = None
    if config.trainer.model.train == "full":
        if config.model.adapter:
            raise AirError(
                'model.adapter is given, but trainer.model.train = "full" trains no adapter.',
                "merge it first (`air export RUN --merged --out DIR`) and set model.name = DIR.",
            )
        model.requires_grad_(True)
    elif config.model.adapter:
        peft = load_lora(model, Path(config.model.adapter))
        check_adapter(peft, config)
        use_fp32_adapters(model)
    else:
        peft = attach_lora(model, lora.rank, lora.alpha, lora.target_modules, lora.last_layers)
        use_fp32_adapters(model)
    if config.trainer.model.ac is not None:
        checkpoint_activations(model, config.trainer.model.ac.freq)
    return Policy(model, logits_head(model), peft, config.trainer.model.impl)


def check_adapter(peft: Any, config: Config) -> None:
    """The adapter that is started from decides its own shape; a config that says otherwise would be ignored."""
    from airloop.config.toml import toml_value

    wanted = config.trainer.model.lora
    asked = {
        "rank": wanted.rank,
        "alpha": wanted.alpha,
        "target_modules": sorted(wanted.target_modules),
        "last_layers": wanted.last_layers,
    }
    found = shape_of_adapter(peft.peft_config["default"])
    if found == asked:
        return
    lines = [f"{key} = {toml_value(value)}" for key, value in found.items() if value is not None]
    stray = [key for key, value in found.items() if value is None and asked[key] is not None]
    raise AirError(
        f"The adapter {config.model.adapter} has {_words(found)}; the config says {_words(asked)}.",
        "[trainer.model.lora] " + ", ".join(lines) + (f"; without {stray[0]}" if stray else ""),
    )


def shape_of_adapter(saved: Any) -> dict[str, Any]:
    """The keys of [trainer.model.lora] that PEFT's own config of an adapter stands for."""
    return {
        "rank": saved.r,
        "alpha": saved.lora_alpha,
        "target_modules": sorted(saved.target_modules),
        "last_layers": len(saved.layers_to_transform) if saved.layers_to_transform else None,
    }


def _words(shape: Mapping[str, Any]) -> str:
    where = "every block" if shape["last_layers"] is None else f"the last {shape['last_layers']} blocks"
    return f"rank {shape['rank']}, alpha {shape['alpha']:g} and target_modules {shape['target_modules']} in {where}"


def checkpoint_activations(model: Any, freq: int) -> None:
    """Recompute the activations of every freq-th block in the backward pass instead of keeping them."""
    model.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": False})
    for i, layer in enumerate(model.get_decoder().layers):
        layer.gradient_checkpointing = i % freq == 0


def learner_settings(config: Config) -> LearnerSettings:
    from airloop.learn.learner import LearnerSettings
    from airloop.learn.losses import LossSettings, find_loss

    optim, loss = config.trainer.optim, config.trainer.loss
    given = find_loss(loss.type).clips | {
        f.name: value for f in fields(LossSettings) if (value := getattr(loss, f.name)) is not None
    }
    return LearnerSettings(
        lr=optim.lr,
        weight_decay=optim.weight_decay,
        max_norm=optim.max_norm,
        betas=optim.betas,
        warmup_steps=optim.warmup_steps,
        loss=loss.type,
        loss_settings=LossSettings(**given),  # a key that is None the loss does not have
        passes=loss.passes,
        temperature=config.orchestrator.sampling.temperature,
        token_budget=config.trainer.token_budget,
        offload=optim.offload,
    )


def training_schedule(config: Config, envs: Mapping[str, Environment]) -> TaskSchedule:
    """The tasks that a run trains on. One ratio makes all of them count, 1 where none is said."""
    given = {env.title: env.ratio for env in config.orchestrator.env}
    ratios = {name: ratio or 1.0 for name, ratio in given.items()} if any(given.values()) else None
    families = {env.title: env.families for env in config.orchestrator.env if env.families}
    c = config.orchestrator.curriculum
    curriculum = Curriculum(c.low, c.high, c.floor, c.episodes) if c else None
    schedule = TaskSchedule(envs, "train", config.seed, ratios, families, curriculum)
    if curriculum and (len(schedule.families()) < 2 or all(env.success is None for env in envs.values())):
        why = "all tasks are of one family" if len(schedule.families()) < 2 else "no environment says what success is"
        raise AirError(f"[orchestrator.curriculum] has nothing to choose by: {why}.", "leave it out.")
    return schedule


def rollout_settings(config: Config, stop_ids: tuple[int, ...] = (), ranks: int = 1) -> RolloutSettings:
    """Of one of `ranks` samplers: together they have as many episodes under way as the config allows."""
    o = config.orchestrator
    s = o.sampling
    return RolloutSettings(
        sampling=Sampling(s.max_tokens, s.temperature, s.top_p, s.top_k, s.min_p, stop_ids=stop_ids),
        rollouts_per_example=o.rollouts_per_example,
        seed=config.seed,
        max_concurrent=max(1, o.max_concurrent // ranks),
        strategy=o.trajectory_strategy,
        parser=config.inference.model.tool_call_parser,
        deadline_s=o.episode_timeout_s,
        retries=o.retries,
        online_difficulty_filtering=o.buffer.online_difficulty_filtering,
        oversampling_factor=o.oversampling_factor,
    )


def held_out_tasks(envs: dict[str, Environment], split: str, count: int) -> list[Task]:
    """The first `count` tasks of a shuffle that no config can change, each family with its share: every evaluation
    meets the same rows."""
    schedule = TaskSchedule(envs, split, seed=0)
    return stratified(schedule.batch(0, len(schedule)), min(count, len(schedule)))


async def check_prompts(parts: Components, tasks: list[Task], watcher: Watcher) -> int:
    """The longest first prompt of the tasks; refused if it leaves no room for a reply, and told if it leaves less than
    max_tokens (A4)."""
    watcher.phase("measuring the first prompts", len(tasks))
    longest, worst = 0, ""
    tokenizer = parts.loaded.tokenizer
    for task in tasks:
        opening = await _opening(parts, task)
        watcher.advance()
        text = tokenizer.render(list(opening.messages), list(opening.tools), True)
        length = len(tokenizer.encode(text))
        if length > longest:
            longest, worst = length, task.id
    room = parts.config.seq_len - longest
    wanted = parts.config.orchestrator.sampling.max_tokens
    if room >= wanted:
        return longest
    seen = (
        f"The prompt of task {worst!r} has {longest} tokens: with max_tokens = {wanted} that is more than the "
        f"context of {parts.config.seq_len}"
    )
    fix = f"set seq_len to at least {longest + wanted}"
    if room < 1:
        raise AirError(f"{seen}, and leaves no room for a reply.", f"{fix}.")
    watcher.say(
        f"warning: {seen}: replies to it end after {room} tokens. {fix[0].upper()}{fix[1:]}, or "
        f"orchestrator.sampling.max_tokens to at most {room}."
    )
    return longest


async def _opening(parts: Components, task: Task) -> Opening:
    """It may take as long as an episode may: some environments measure a baseline first."""
    longest_s = parts.config.orchestrator.episode_timeout_s
    try:
        with waiting(f"the opening of task {task.id}", f"environment {task.env}", longest_s):
            async with asyncio.timeout(longest_s), open_session(parts.envs[task.env], task, 0) as session:
                return await begin_session(session)
    except TimeoutError:
        raise AirError(
            f"Task {task.id!r} of {task.env!r} was not open after {longest_s:.0f} s, which is all that an episode has.",
            "see what it waits for (`air tasks check`), or raise orchestrator.episode_timeout_s.",
        ) from None


def _base_shards(config: Config, plan: MemoryPlan | None, ranks: Ranks) -> bool:
    """Whether an adapter's base is in shards while training. GPUs may differ in what is free: all do as one must."""
    if plan is None or config.trainer.model.shard is not None:
        return bool(config.trainer.model.shard)
    return any(ranks.all_gather_now(plan.base_shards, "whether the base is in shards"))


def _plan(config: Config, policy: Policy, ranks: int) -> MemoryPlan | None:
    """On CUDA the memory is planned: how many keys and values there is room for, and whether they stay in training."""
    import torch

    from airloop.plan import plan, read_shape

    if policy.device.type != "cuda":
        return None
    free, _ = torch.cuda.mem_get_info(policy.device)
    return plan(config, read_shape(policy.model), free + torch.cuda.memory_reserved(policy.device), ranks)
