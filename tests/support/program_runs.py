"""The config of a tiny run whose episodes programs play."""

from __future__ import annotations

CONFIG = """
max_steps = 2
seq_len = 128
output_dir = "out"
[model]
name = "tiny:llama"
[trainer.model]
train = "full"
[orchestrator]
batch_size = BATCH
rollouts_per_example = 4
[orchestrator.sampling]
max_tokens = 8
[orchestrator.eval]
num_examples = EXAMPLES
"""


def program_run(id: str, args: str, more: str = "", batch: int = 8, examples: int = 2) -> str:
    settings = CONFIG.replace("BATCH", str(batch)).replace("EXAMPLES", str(examples))
    return f'{settings}{more}[[orchestrator.env]]\nid = "{id}"\nargs = {args}\n'
