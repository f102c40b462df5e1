"""air: reinforcement learning for language-model agents."""

import os

__version__ = "0.1.0"

# Before torch is loaded: idle OpenMP threads sleep instead of spinning. Sampling shares its cores with the
# environments' own processes, and a spinning thread that waits for one that is not scheduled waits long.
os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
