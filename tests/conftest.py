"""Tests run in parallel processes on few cores: one torch thread each, or they wait for one another."""

from __future__ import annotations

import os

os.environ.setdefault("OMP_NUM_THREADS", "1")

import pytest
import torch
from hypothesis import HealthCheck, settings

torch.set_num_threads(1)
settings.register_profile("air", deadline=None, suppress_health_check=[HealthCheck.too_slow], derandomize=True)
settings.load_profile("air")


@pytest.fixture(autouse=True)
def same_seed() -> None:
    torch.manual_seed(0)
