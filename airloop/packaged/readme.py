"""The README of a written package: how it is installed, loaded and trained on."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pydantic.fields import FieldInfo

from airloop.config.toml import toml_value
from airloop.envs.base import Environment

TEXT = """# {distribution}

{about}
Tasks, tools, rewards and sandbox are airloop's; this package names the environment and holds the files that it needs.

    pip install -e .             # beside airloop and verifiers

airloop comes from its own checkout or wheel. Where that must not touch the torch and transformers that are there,
install it with `--no-deps`: environments need neither.

## verifiers from 0.3.1 on, and prime-rl

    vf-eval {distribution} -n 5 -m MODEL --client.base-url http://127.0.0.1:8000/v1       # 0.3.1 calls it `eval`

```toml
[[orchestrator.train.source]]            # prime-rl; a file of vf-eval's has [env.taskset]
name = "{distribution}"

[orchestrator.train.source.env.taskset]
id = "{distribution}"
split = "train"                          # or eval, test
args = {{ {example} }}
```

`rewards = {{ name = weight }}` beside `args` weighs the components anew; `trajectory_dir` keeps each episode as a file.
Episodes are played in the process that asks for them, and agents' code runs in airloop's sandbox: so
`env.agent.runtime.type` stays "subprocess", which is the default here.

## verifiers up to 0.3.1

```python
import verifiers as vf

env = vf.load_environment("{distribution}", eval_split="eval", {example})
```

`vf-eval {distribution} -n 5 -m MODEL -b http://127.0.0.1:8000/v1` evaluates it; older versions of prime-rl take it as
`[[orchestrator.env]] id = "{distribution}"`, with `args`. `eval_split = "test"` has the test tasks; `rewards` and
`trajectory_dir` as above.

## What it pays

{weights}

Whatever else the environment measures is a metric{success}.
Trouble with a sandbox or another part of the machinery is verifiers' InfraError (v1: SandboxError), never a reward.

## Arguments

{arguments}
"""


def readme(env: Environment, module: str, about: str, args: Mapping[str, Any], rewards: Mapping[str, float]) -> str:
    weights = rewards or env.reward_weights
    own = {name: field for name, field in type(env).Args.model_fields.items() if name != "trajectory_dir"}
    plain = [name for name in own if isinstance(getattr(env.args, name), int | str) and name not in args]
    example = next((name for name in ("max_turns", *plain) if name in plain), "")
    return TEXT.format(
        distribution=module.replace("_", "-"),
        about=about,
        example=f"{example} = {toml_value(getattr(env.args, example))}" if example else "",
        weights="\n".join(f"- `{name}`, weight {weight:g}" for name, weight in weights.items())
        or "Every component that an episode has, each with weight 1.",
        success=f", `success` ({env.success}) among them" if env.success else "",
        arguments="\n".join(f"- `{name}`: {_about(name, field, args)}" for name, field in own.items()) or "None.",
    )


def _about(name: str, field: FieldInfo, args: Mapping[str, Any]) -> str:
    text = field.description or "see the environment"
    return f"{text} (here: {args[name]!r})" if name in args else text
