"""The engines that inference.backend names: a new one is a file and its line in the table.

Keys, rules and plans ask the table what an engine is, not what it is called; engines themselves are imported when a run
makes one.
"""

from __future__ import annotations

from typing import NamedTuple


class EngineSpec(NamedTuple):
    make: str  # module:function, called as MakeEngine of airloop/engine/make.py says
    # It samples on the trainer's own weights, in each process that trains, and so in their memory, too.
    own_weights: bool


ENGINES = {
    "embedded": EngineSpec("airloop.engine.embedded.make:make_embedded_engine", own_weights=True),
    "vllm": EngineSpec("airloop.engine.vllm.start:make_vllm_engine", own_weights=False),
}
