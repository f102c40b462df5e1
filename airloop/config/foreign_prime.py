"""Keys of prime-rl (0.3 to 0.8 and later) by their whole path. `*` is an index, `**` all that is below."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from airloop.config.foreign import (
    ALIASES,
    ONE_COPY,
    OWN_RANKS,
    Alias,
    Answer,
    beta,
    context,
    drop,
    group,
    is_on,
    none,
    number,
    to,
    tool_choice,
    typed,
)
from airloop.config.foreign import when_off as off

HOW = drop("how it is computed, not what: air has one way of its own")
_SERVER = drop(f"there is no server: {ONE_COPY}")
_ENV = "[[orchestrator.env]] has the environments that are trained on"
_DISTILL = none("learning from a teacher has no equivalent here", "air trains on the environment's reward only")
_CHECKPOINTS = drop("a checkpoint has the weights and the optimiser's state, an adapter by itself")
RESUME = drop("a run goes on with its own config", "run `air train --resume RUN`")
_PENALTY = none("this penalty has no equivalent here", 'trainer.loss.overlong = "episode" penalises long episodes')
_EXPORT = drop("they are the shell's", "export them before `air train`")
_LOSS = none(
    "of this loss there is no equivalent here", "see docs/losses.md for clip_low, clip_high and importance_cap"
)


def only(accepted: tuple[str, ...], why: str, instead: str) -> Alias:
    """A key with one value that says what air does anyway."""

    def read(given: Any, _: Mapping[str, Any]) -> Answer:
        if str(given) in accepted:
            return Answer("that is what air does")
        return Answer(f"{why.format(given)} has no equivalent here", instead=instead, choice=True)

    return Alias(read=read)


def _token_mask(key: str) -> Alias:
    """A bound of a token's ratio, beyond which the token is left out; 0 is none."""

    def read(given: Any, _: Mapping[str, Any]) -> Answer:
        mask = {"trainer.loss.importance_mode": "mask"}
        if number(given) == 0:
            return Answer("without a floor no token is left out below it", mask)
        bound = typed(f"trainer.loss.{key}", given)
        return Answer("a token is left out beyond it", {f"trainer.loss.{key}": bound, **mask})

    return Alias(read=read)


def _deployment(given: Any, _: Mapping[str, Any]) -> Answer:
    why = f"{ONE_COPY}, so the GPUs are named together: {OWN_RANKS}"
    if not isinstance(given, Mapping) or given.get("type", "single_node") != "single_node":
        return Answer(
            f"{ONE_COPY}, on several machines as on one: {OWN_RANKS}",
            instead="say cluster.nodes and cluster.gpus_per_node, and cluster.roles where some only sample",
            choice=True,
        )
    count = int(number(given.get("num_train_gpus", 1)) or 0) + int(number(given.get("num_infer_gpus", 1)) or 0)
    return Answer(why, {"trainer_gpu_ids": list(range(max(1, count)))})


def _offload(given: Any, _: Mapping[str, Any]) -> Answer:
    return Answer("it is the optimiser's", {"trainer.optim.offload": True} if is_on(given) else {})


def _filters(given: Any, _: Mapping[str, Any]) -> Answer:
    entries = [entry for entry in given if isinstance(entry, Mapping)] if isinstance(given, list) else []
    kinds = {str(entry.get("type")): entry.get("enforce", True) for entry in entries}
    others = sorted(kind for kind, enforced in kinds.items() if enforced and kind != "zero_advantage")
    changes = {}
    if kinds.get("zero_advantage"):
        changes = {"orchestrator.buffer.online_difficulty_filtering": True}
    if others:
        return Answer(
            f"the filters {', '.join(others)} have no equivalent here",
            changes,
            "every reply that was sampled is trained",
            choice=True,
        )
    return Answer(
        "groups without signal are left out by one switch" if changes else "nothing is filtered by it", changes
    )


def _pools(given: Any, _: Mapping[str, Any]) -> Answer:
    return Answer(
        "pools of easy and hard tasks have no equivalent here",
        instead="online_difficulty_filtering leaves out groups whose rewards are all equal",
        choice=True,
    )


def _buffer_type(given: Any, _: Mapping[str, Any]) -> Answer:
    online = isinstance(given, str) and "online" in given.lower()
    why = "the buffer has no types; what differs is one switch"
    return Answer(why, {"orchestrator.buffer.online_difficulty_filtering": online})


_OLD_LORA = (
    "the experimental section is gone; what was in it is in [trainer.model], and its lora is read in both places"
)
_ADAMW = only(("adamw", "AdamW"), "the optimiser {}", "here it is AdamW")
_WANDB = {
    "shared": drop("there is one process that logs"),
    "id": drop("a run has an id of its own"),
    "log_extras.**": drop("wandb.samples is how many trajectories go to a table"),
}
_SAMPLING = {
    "max_completion_tokens": to("orchestrator.sampling.max_tokens"),
    "max_tokens": to("orchestrator.sampling.max_tokens"),
    "temperature": to("orchestrator.sampling.temperature"),
    "top_p": to("orchestrator.sampling.top_p"),
    "top_k": to("orchestrator.sampling.top_k"),
    "min_p": to("orchestrator.sampling.min_p"),
    "min_tokens": off("a reply ends where the model ends it", "leave sampling as it is"),
    "seed": drop("every episode's seed follows from the top-level seed"),
    "repetition_penalty": ALIASES["repetition_penalty"],
    "extra_body.**": none("arguments of the chat template have no equivalent here", "model.chat_template is a file"),
}


def _below(prefix: str, table: Mapping[str, Alias]) -> dict[str, Alias]:
    return {f"{prefix}.{name}": alias for name, alias in table.items()}


PRIME: dict[str, Alias] = {
    "deployment": Alias(read=_deployment),
    "slurm.**": drop("air is one command on one machine", "put it into the job's script"),
    "weight_broadcast.**": drop(f"{ONE_COPY}: nothing is sent"),
    "rollout_transport.**": drop("one program samples and trains: nothing is sent"),
    "trainer.weight_broadcast.**": drop(f"{ONE_COPY}: nothing is sent"),
    "orchestrator.weight_broadcast.**": drop(f"{ONE_COPY}: nothing is sent"),
    "inference.weight_broadcast.**": drop(f"{ONE_COPY}: nothing is sent"),
    "env_vars.**": _EXPORT,
    "trainer.env_vars.**": _EXPORT,
    "orchestrator.env_vars.**": _EXPORT,
    "inference.env_vars.**": _EXPORT,
    "clean": drop("a run never writes over another"),
    "clean_output_dir": drop("a run never writes over another"),
    "dry_run": drop("`air train --dry-run` tries a config"),
    "bench": drop("`air plan` and `air doctor` measure before a run"),
    "resume.**": RESUME,
    "ckpt.resume_step": RESUME,
    "orchestrator.resume.**": RESUME,
    "trainer.resume.**": RESUME,
    **{
        f"ckpt.{name}": _CHECKPOINTS
        for name in (
            *("skip_optimizer", "skip_scheduler", "skip_progress", "skip_dataloader", "skip_buffer", "keep_interval"),
            *("output_dir", "weights.**", "weights_only", "skip_gather_master_weights", "wait_for_weights_timeout"),
        )
    },
    "trainer.ckpt.**": _CHECKPOINTS,
    "orchestrator.ckpt.**": _CHECKPOINTS,
    "log.level": to("orchestrator.log.level"),
    "log.**": drop("there is one log"),
    "trainer.log.level": to("orchestrator.log.level"),
    "monitors.wandb.project": to("wandb.project"),
    "monitors.wandb.name": to("wandb.name"),
    "monitors.wandb.offline": to("wandb.offline"),
    "monitors.wandb.entity": to("wandb.entity"),
    "monitors.wandb.tags": to("wandb.tags"),
    "monitors.wandb.group": to("wandb.group"),
    **_below("monitors.wandb", _WANDB),
    **_below("wandb", _WANDB),
    "monitors.**": drop("metrics.jsonl is always written"),
    "orchestrator.prime_monitor.**": drop("metrics.jsonl is always written"),
    "orchestrator.monitors.**": drop("metrics.jsonl is always written"),
    "heartbeat.**": drop("metrics.jsonl is always written"),
    "run.name": to("run_name"),
    "model.vlm.**": none("models of text and images have no equivalent here", "name a text model"),
    "tokenizer.chat_template": to("model.chat_template"),
    "tokenizer.**": drop("the tokenizer is the model's own"),
    "trainer.model.name": to("model.name"),
    "trainer.tokenizer.**": drop("the tokenizer is the model's own"),
    "inference.model.name": drop(f"{ONE_COPY}: [model] name"),
    "orchestrator.model.lora.name": drop("there is one adapter, and it is always the served one"),
    "orchestrator.model.**": drop(f"{ONE_COPY}: [model] name"),
    "orchestrator.student.**": drop(f"{ONE_COPY}: [model] name"),
    "orchestrator.client.**": _SERVER,
    "trainer.model.experimental": Alias(read=lambda given, _: Answer(_OLD_LORA, {"trainer.model": given})),
    "trainer.model.lora.modules_to_save": off("only the adapter is trained", "see trainer.model.train"),
    "trainer.model.optim_cpu_offload": Alias(read=_offload),
    "trainer.model.full_offload": Alias(read=_offload),
    "trainer.model.ac.mode": drop("whole blocks are checkpointed"),
    "trainer.model.ac.targets": drop("whole blocks are checkpointed"),
    "trainer.model.quantization.**": none("training in FP8 has no equivalent here", "see model.dtype"),
    "trainer.model.fp8": off("training is in bfloat16 or float32", "see model.dtype"),
    "trainer.model.debug.**": none("a part of a model has no equivalent here", 'a tiny one is name = "tiny:llama"'),
    "trainer.model.vlm.**": none("models of text and images have no equivalent here", "name a text model"),
    **{
        f"trainer.model.{name}": HOW
        for name in (
            *(
                "attn",
                "compile.**",
                "cp",
                "cp_style",
                "ep",
                "tp",
                "dp_replicate",
                "ep_comm_backend",
                "moe_use_grouped_mm",
            ),
            *("fused_lm_head_token_chunk_size", "fused_lm_head_chunk_size", "ac_offloading.**", "optimization_dtype"),
            *("reduce_dtype", "reshard_after_forward", "load_using_meta", "trust_remote_code", "freeze_moe_router"),
            *("moe_router_dtype", "moe_fused_kernel", "deepep_num_sms", "deepep_token_chunk_size", "conversion_dir"),
            *("liger_kernel", "attn_implementation", "index_cache.**"),
        )
    },
    "trainer.dist_timeout_seconds": drop("every wait has its own deadline"),
    "trainer.enable_router_replay": HOW,
    "trainer.enable_token_export": drop("every trajectory is saved with its tokens"),
    **{
        f"trainer.{name}": HOW
        for name in ("matmul_precision", "gc.**", "memory_profiler_path", "trace_path", "metrics_server.**", "bench")
    },
    "trainer.max_concurrent_runs": drop("one program trains one run"),
    "trainer.max_steps": to("max_steps"),
    "trainer.monitors.**": drop("metrics.jsonl is always written"),
    "trainer.data.**": none("made-up batches have no equivalent here", "see `air doctor`, which tries a step"),
    "trainer.recompute_logprobs": drop("log-probs of sampler and trainer are compared in every step"),
    "trainer.scheduler.type": ALIASES["lr_scheduler_type"],
    "trainer.scheduler.warmup_steps": to("trainer.optim.warmup_steps"),
    "trainer.scheduler.decay_steps": to("trainer.optim.decay_steps"),
    "trainer.scheduler.min_lr": to("trainer.optim.min_lr"),
    "trainer.optim.type": _ADAMW,
    "trainer.optim.betas1": beta(0),
    "trainer.optim.betas2": beta(1),
    "trainer.loss.kl_tau": off("this KL term is to the sampler, not to the starting model", "see trainer.loss.kl_beta"),
    "trainer.loss.ratio_type": ALIASES["importance_sampling_level"],
    **{
        f"trainer.loss.{name}": _LOSS
        for name in (
            *("dppo_mask_low", "dppo_mask_high", "adv_tau", "ipo_threshold", "sequence_clip_high"),
            *("teacher_tau", "import_path", "kwargs.**", "clip_ratio"),
        )
    },
    # geo_mask_* and sequence_mask_* have the same names here; these are what others of them were, or are.
    "trainer.loss.token_mask_low": _token_mask("importance_floor"),
    "trainer.loss.token_mask_high": _token_mask("importance_cap"),
    "trainer.loss.mask_ratio_low": _token_mask("importance_floor"),
    "trainer.loss.mask_ratio_high": _token_mask("importance_cap"),
    "trainer.loss.sequence_mask_ratio_low": to("trainer.loss.sequence_mask_low"),
    "trainer.loss.sequence_mask_ratio_high": to("trainer.loss.sequence_mask_high"),
    "inference.vllm.max_model_len": context,
    "inference.vllm.tool_call_parser": to("inference.model.tool_call_parser"),
    "inference.vllm.enforce_eager": to("inference.model.enforce_eager"),
    "inference.vllm.enable_auto_tool_choice": tool_choice,
    "inference.vllm.gpu_memory_utilization": to("inference.gpu_memory_utilization"),
    "inference.vllm.**": _SERVER,
    "inference.model.reasoning_parser": drop("a reply is trained as it was sampled, thoughts and all"),
    "inference.model.chat_template": to("model.chat_template"),
    "inference.model.dtype": to("model.dtype"),
    "inference.model.trust_remote_code": HOW,
    "inference.model.rope_scaling": none("a stretched context has no equivalent here", "see seq_len"),
    **{
        f"inference.{name}": _SERVER
        for name in (
            *(
                "parallel.**",
                "server.**",
                "deployment.**",
                "router.**",
                "vllm_extra.**",
                "kv_cache_offload.**",
                "log.**",
            ),
            *(
                "slurm.**",
                "experimental.**",
                "api_server_count",
                "enable_eplb",
                "enable_expert_parallel",
                "enable_lora",
            ),
            *(
                "enable_prefix_caching",
                "enable_return_routed_experts",
                "enable_dbo",
                "enable_fp32_lm_head",
                "max_loras",
            ),
            *("enable_fp32_router_logits", "max_cpu_loras", "max_lora_rank", "lora_target_modules", "use_deep_gemm"),
            *("quantization", "all2all_backend", "backend_port", "data_parallel_rpc_port", "data_parallel_size_local"),
            *("use_pd_kv_transfer", "output_dir", "seed", "dry_run"),
        )
    },
    "teacher_inference.**": _DISTILL,
    "orchestrator.group_size": group,
    "orchestrator.train.group_size": group,
    **_below("orchestrator.train.sampling", _SAMPLING),
    **_below("orchestrator.sampling", {k: v for k, v in _SAMPLING.items() if v.key.rpartition(".")[2] != k}),
    "orchestrator.concurrency.max_inflight": to("orchestrator.max_concurrent"),
    "orchestrator.concurrency.**": drop("orchestrator.max_concurrent is the most that are under way"),
    "orchestrator.max_inflight_rollouts": to("orchestrator.max_concurrent"),
    "orchestrator.max_inflight_episodes": to("orchestrator.max_concurrent"),
    "orchestrator.token_batch_size": none("a batch is counted in trajectories", "write orchestrator.batch_size"),
    "orchestrator.pool_size": drop("orchestrator.max_concurrent is the most that are under way"),
    "orchestrator.num_train_workers": drop(OWN_RANKS),
    "orchestrator.max_steps": to("max_steps"),
    "max_model_len": context,
    "file_monitor.**": drop("metrics.jsonl is always written"),
    "orchestrator.renderer.**": drop(
        "the model's own chat template is used, and sampled tokens are never rendered again"
    ),
    "orchestrator.use_renderer": HOW,
    "orchestrator.use_token_client": HOW,
    "orchestrator.training_mode": only(("rl",), 'training_mode = "{}"', "air trains on the environment's reward only"),
    "orchestrator.teacher.**": _DISTILL,
    "orchestrator.teacher_model.**": _DISTILL,
    "orchestrator.teacher_rollout_model.**": _DISTILL,
    "orchestrator.algo.type": only(("grpo",), "the algorithm {}", "here advantages are rewards less the group's mean"),
    "orchestrator.algo.length_penalty.**": _PENALTY,
    "orchestrator.algo.**": _DISTILL,
    "orchestrator.advantage.type": only(
        ("default",), "the advantage {}", 'one of your own is trainer.loss.advantage = "./my_advantage.py:advantage"'
    ),
    "orchestrator.advantage.**": _PENALTY,
    "orchestrator.buffer.type": Alias(read=_buffer_type),
    "orchestrator.buffer.seed": to("seed", "the order of tasks follows from the top-level seed"),
    "orchestrator.buffer.env_ratios": ALIASES["env_ratios"],
    **{
        f"orchestrator.buffer.{level}_{what}": Alias(read=_pools)
        for level in ("easy", "hard")
        for what in ("threshold", "fraction")
    },
    "orchestrator.buffer.hash_keys": drop("a task is known by its id"),
    "orchestrator.buffer.skip_verification": drop("every episode is scored"),
    "orchestrator.filters": Alias(read=_filters),
    "orchestrator.pre_batch_filters": Alias(read=_filters),
    "orchestrator.post_batch_filters": Alias(read=_filters),
    "orchestrator.val.interval": to("orchestrator.eval.interval"),
    "orchestrator.val.num_examples": to("orchestrator.eval.num_examples"),
    "orchestrator.val.rollouts_per_example": to("orchestrator.eval.rollouts_per_example"),
    "orchestrator.eval.group_size": to("orchestrator.eval.rollouts_per_example"),
    "orchestrator.eval.sampling.temperature": to("orchestrator.eval.temperature"),
    "orchestrator.eval.sampling.**": drop("replies in evaluations are as long as in training: orchestrator.sampling"),
    "orchestrator.eval.num_workers": to("orchestrator.workers_per_env"),
    **{
        f"orchestrator.eval.{name}": drop("evaluations are before the first step, after the last, and every interval")
        for name in (
            *(
                "eval_base_model",
                "skip_first_step",
                "skip_eval_on_resume",
                "retrigger_on_resume",
                "save.**",
                "retry.**",
            ),
            *("cancel_inflight_rollouts_on_eval", "per_rollout", "reasoning_field", "max_retries"),
        )
    },
    **{
        f"orchestrator.{name}": HOW
        for name in (
            *("collect_inference_metrics", "inference_metrics_roles.**", "env_server_base_port", "pad_to_multiple_of"),
            *("env_install_prerelease", "reload_weights_on_start", "max_env_worker_restarts", "tasks_per_minute"),
            *("bench", "heartbeat.**", "file_monitor.**", "rollout_transport.**", "experimental.**", "tokenizer.**"),
            *("verification.**", "output_dir"),
        )
    },
    "orchestrator.seed": to("seed"),
    "orchestrator.mask_env_responses": drop("a token is trained if and only if it was sampled"),
    "orchestrator.optim.lr": to("trainer.optim.lr"),
    "orchestrator.sampling.temp_scheduler.**": none(
        "the temperature is constant", "see orchestrator.sampling.temperature"
    ),
    "orchestrator.env.*.address": drop("environments run in this program"),
    "orchestrator.env.*.num_workers": to("orchestrator.workers_per_env"),
    "orchestrator.env.*.max_retries": to("orchestrator.retries"),
}
