"""Keys of verl by their whole path, as they stand on its command lines: `data.train_batch_size=256`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from airloop.config.foreign import ALIASES, Alias, Answer, context, drop, group, none, number, to
from airloop.config.foreign import when_off as off
from airloop.config.foreign_prime import HOW, RESUME
from airloop.config.sources import at


def _per_prompt(given: Any, tree: Mapping[str, Any]) -> Answer:
    """verl counts prompts, and each is answered n times."""
    prompts, n = number(given), number(at(tree, "actor_rollout_ref", "rollout", "n"))
    if prompts is None or n is None:
        return Answer(
            "it counts tasks there and trajectories here", instead="write orchestrator.batch_size", choice=True
        )
    why = f"it counts tasks there and trajectories here: {prompts:g} × {n:g} = {prompts * n:g}"
    return Answer(why, {"orchestrator.batch_size": int(prompts * n)})


def _gpu_count(given: Any, _: Mapping[str, Any]) -> Answer:
    return Answer("the GPUs are named", {"trainer_gpu_ids": list(range(max(1, int(number(given) or 1))))})


def _estimator(given: Any, _: Mapping[str, Any]) -> Answer:
    if str(given) in ("grpo", "rloo"):
        return Answer("the loss has it", {"trainer.loss.type": str(given)})
    return Answer(f"the estimator {given} has no equivalent here", instead="see docs/losses.md", choice=True)


def _kl_kind(given: Any, _: Mapping[str, Any]) -> Answer:
    known = {"kl": "k1", "k1": "k1", "mse": "k2", "k2": "k2", "low_var_kl": "k3", "k3": "k3"}
    if str(given) not in known:
        return Answer(f"{given} has no equivalent here", instead="see trainer.loss.kl_estimator", choice=True)
    return Answer("so it is called here", {"trainer.loss.kl_estimator": known[str(given)]})


_ACTOR, _ROLLOUT = "actor_rollout_ref.actor", "actor_rollout_ref.rollout"
VERL: dict[str, Alias] = {
    "data.train_batch_size": Alias(read=_per_prompt),
    "data.max_response_length": to("orchestrator.sampling.max_tokens"),
    "data.max_prompt_length": ALIASES["max_prompt_length"],
    "data.train_files": ALIASES["dataset_name"],
    "data.val_files": ALIASES["dataset_name"],
    "data.shuffle": drop("tasks are shuffled"),
    "data.**": none("tasks come from the environment, shuffled and never cut", "its args say which"),
    "actor_rollout_ref.model.path": to("model.name"),
    "actor_rollout_ref.model.lora_rank": to("trainer.model.lora.rank"),
    "actor_rollout_ref.model.lora_alpha": to("trainer.model.lora.alpha"),
    "actor_rollout_ref.model.target_modules": to("trainer.model.lora.target_modules"),
    "actor_rollout_ref.model.enable_gradient_checkpointing": Alias("trainer.model.ac.freq", "it is a table here", 1),
    f"{_ACTOR}.optim.lr": to("trainer.optim.lr"),
    f"{_ACTOR}.optim.weight_decay": to("trainer.optim.weight_decay"),
    f"{_ACTOR}.optim.lr_warmup_steps": to("trainer.optim.warmup_steps"),
    f"{_ACTOR}.optim.lr_scheduler_type": ALIASES["lr_scheduler_type"],
    f"{_ACTOR}.optim.warmup_style": ALIASES["lr_scheduler_type"],
    f"{_ACTOR}.grad_clip": to("trainer.optim.max_norm"),
    f"{_ACTOR}.ppo_epochs": to("trainer.loss.passes"),
    f"{_ACTOR}.ppo_mini_batch_size": none("every update is over the whole batch", "see trainer.loss.passes"),
    f"{_ACTOR}.clip_ratio": ALIASES["epsilon"],
    f"{_ACTOR}.clip_ratio_low": to("trainer.loss.clip_low"),
    f"{_ACTOR}.clip_ratio_high": to("trainer.loss.clip_high"),
    f"{_ACTOR}.use_kl_loss": drop("the KL term is there where kl_beta is above 0"),
    f"{_ACTOR}.kl_loss_coef": to("trainer.loss.kl_beta"),
    f"{_ACTOR}.kl_loss_type": Alias(read=_kl_kind),
    f"{_ACTOR}.entropy_coeff": to("trainer.loss.entropy_beta"),
    f"{_ACTOR}.loss_agg_mode": none("the loss says how tokens are averaged", "see docs/losses.md"),
    f"{_ROLLOUT}.n": group,
    f"{_ROLLOUT}.temperature": to("orchestrator.sampling.temperature"),
    f"{_ROLLOUT}.top_p": to("orchestrator.sampling.top_p"),
    f"{_ROLLOUT}.top_k": to("orchestrator.sampling.top_k"),
    f"{_ROLLOUT}.gpu_memory_utilization": to("inference.gpu_memory_utilization"),
    f"{_ROLLOUT}.max_model_len": context,
    "actor_rollout_ref.**": HOW,
    "algorithm.adv_estimator": Alias(read=_estimator),
    "algorithm.norm_adv_by_std_in_grpo": to("trainer.loss.scale_rewards"),
    "algorithm.use_kl_in_reward": off("the KL term is in the loss", 'see trainer.loss.kl_estimator = "k1"'),
    "algorithm.**": none("it has no equivalent here", "see docs/losses.md"),
    "critic.**": none("there is no critic: advantages are rewards less the group's mean", "see docs/losses.md"),
    "reward_model.**": ALIASES["reward_funcs"],
    "custom_reward_function.**": ALIASES["reward_funcs"],
    "trainer.total_training_steps": to("max_steps"),
    "trainer.total_epochs": ALIASES["num_train_epochs"],
    "trainer.n_gpus_per_node": Alias(read=_gpu_count),
    "trainer.nnodes": to("cluster.nodes", "see docs/cluster.md"),
    "trainer.save_freq": to("ckpt.interval"),
    "trainer.test_freq": to("orchestrator.eval.interval"),
    "trainer.project_name": to("wandb.project"),
    "trainer.experiment_name": to("run_name"),
    "trainer.logger": ALIASES["report_to"],
    "trainer.val_before_train": drop("evaluations are before the first step, after the last, and every interval"),
    "trainer.critic_warmup": off("there is no critic", "see docs/losses.md"),
    "trainer.default_local_dir": to("output_dir"),
    "trainer.resume_mode": RESUME,
}
