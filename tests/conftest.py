"""Tests run in parallel processes on few cores: one torch thread each, or they wait for one another."""

from __future__ import annotations

import gc
import json
import logging
import os
import shutil
import signal
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

os.environ.setdefault("OMP_NUM_THREADS", "1")
if not os.path.exists("/dev/nvidia0") or os.environ.get("CUDA_VISIBLE_DEVICES") == "":  # interpret kernels
    os.environ.setdefault("TRITON_INTERPRET", "1")

if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:  # a script's background job: tests of Ctrl-C need it
    signal.signal(signal.SIGINT, signal.default_int_handler)

import pytest


def pytest_configure(config: pytest.Config) -> None:
    if config.getoption("numprocesses", None) and not hasattr(config, "workerinput"):
        return  # hands out tests and runs none: it does without the seconds in which torch is imported
    import torch
    from hypothesis import HealthCheck, settings

    torch.set_num_threads(1)
    settings.register_profile("air", deadline=None, suppress_health_check=[HealthCheck.too_slow], derandomize=True)
    settings.load_profile("air")


class _Loggers(dict[str, Any]):
    """pytest goes through all of them before each test, and so does a fixture below: a thread that an earlier test has
    left may add one meanwhile, as any import does."""

    def __iter__(self) -> Iterator[str]:
        return iter(list(dict.keys(self)))

    def values(self) -> list[Any]:  # type: ignore[override]
        return list(dict.values(self))


logging.Logger.manager.loggerDict = _Loggers(logging.Logger.manager.loggerDict)


@pytest.fixture(autouse=True)
def same_seed() -> None:
    import torch

    if os.path.exists("/dev/nvidia0"):
        torch.manual_seed(0)
    else:  # nor do the other devices that are not here keep a seed for later, each with a description of the stack
        torch.default_generator.manual_seed(0)


@pytest.fixture(autouse=True)
def torch_as_it_was() -> Iterator[None]:
    """What a test sets for the whole process decides bits and speed of those after it. torch changes a flag by itself:
    a bf16 product on a CPU without bf16 switches oneDNN off."""
    import torch

    threads, deterministic = torch.get_num_threads(), torch.are_deterministic_algorithms_enabled()
    precision, dtype = torch.get_float32_matmul_precision(), torch.get_default_dtype()
    onednn = torch.backends.mkldnn.set_flags()[:2]
    yield
    torch.set_num_threads(threads)
    if torch.are_deterministic_algorithms_enabled() != deterministic:  # to set it imports torch's compiler, two seconds
        torch.use_deterministic_algorithms(deterministic)
    torch.set_float32_matmul_precision(precision)
    torch.set_default_dtype(dtype)
    torch.set_flush_denormal(False)
    torch.backends.mkldnn.set_flags(*onednn)
    if products := sys.modules.get("airloop.models.fp32_matmul"):
        products.widen_products(False)


@pytest.fixture(autouse=True)
def keys_as_they_were(monkeypatch: pytest.MonkeyPatch) -> None:
    """What one test says is a key stays in the texts of the next."""
    from airloop.text import keys

    monkeypatch.setattr(keys, "_noted", dict(keys._noted))


@pytest.fixture(autouse=True)
def loggers_as_they_were() -> Iterator[None]:
    """A run sends what is logged to its display, and the doctor silences environments: in this process, for good."""
    names = ["airloop", *(name for name in logging.Logger.manager.loggerDict if name.startswith("airloop."))]
    before = {name: _settings(logging.getLogger(name)) for name in names}
    yield
    for name in ["airloop", *(name for name in logging.Logger.manager.loggerDict if name.startswith("airloop."))]:
        logger = logging.getLogger(name)
        level, handlers, propagate, disabled = before.get(name, (logging.NOTSET, [], True, False))
        if logger.level != level:  # to set it takes long: what all loggers have found out about levels is forgotten
            logger.setLevel(level)
        logger.handlers, logger.propagate, logger.disabled = list(handlers), propagate, disabled


def _settings(logger: logging.Logger) -> tuple[int, list[logging.Handler], bool, bool]:
    return logger.level, list(logger.handlers), logger.propagate, logger.disabled


@pytest.fixture
def air(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Any:
    """The command line, in this process: exit code, output, errors."""
    from airloop import cli

    def call(*words: object) -> tuple[int, str, str]:
        monkeypatch.setattr(sys, "argv", ["air", *map(str, words)])
        code = 0
        try:
            cli.main()
        except SystemExit as stop:
            code = int(stop.code or 0)
        printed = capsys.readouterr()
        return code, printed.out, printed.err

    return call


@pytest.hookimpl(tryfirst=True)  # before a test is left out by its marks
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """What runs agents' commands starts worlds of its own, which takes a second and needs bwrap: CI installs it, a
    first look at the project may do without."""
    found = shutil.which("bwrap") is not None
    for item in items:
        if any(part in str(item.path) for part in ("tests/sandbox", "tests/envs/mlgym", "test_d_environment")):
            item.add_marker(pytest.mark.slow)
            if not found:
                item.add_marker(pytest.mark.skip(reason="needs bubblewrap: apt-get install bubblewrap"))
    if config.getoption("--fast"):
        long = json.loads(DURATIONS.read_text())
        slow = [item for item in items if item.get_closest_marker("slow") or _function(item.nodeid) in long]
        config.hook.pytest_deselected(items=slow)
        left_out = set(slow)
        items[:] = [item for item in items if item not in left_out]


@pytest.hookimpl(optionalhook=True)  # xdist's
def pytest_xdist_setupnodes(config: pytest.Config) -> None:
    from support.forked_workers import fork_workers

    fork_workers(config)


def pytest_collection_finish() -> None:
    """A million objects of torch and transformers stay to the end: whoever collects garbage, as each run does after its
    supervised start, need not go through them each time."""
    gc.collect()
    gc.freeze()


def pytest_unconfigure() -> None:
    gc.unfreeze()  # or libraries say at the end that they have leaked


# --- `make test-fast`: what is known to be quick ----------------------------------------------------------

# Seconds of the functions that take longer than QUICK_S, with all their parameters and fixtures: `make durations`.
DURATIONS = Path(__file__).with_name("durations.json")
QUICK_S = 0.3


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--fast", action="store_true", help="leave out what is slow by its marker or by durations.json")
    parser.addoption("--note-durations", action="store_true", help="write durations.json")


def pytest_terminal_summary(terminalreporter: Any, config: pytest.Config) -> None:
    if not config.getoption("--note-durations"):
        return
    found: dict[str, float] = {}
    for reports in terminalreporter.stats.values():
        for report in reports:
            if isinstance(report, pytest.TestReport):
                name = _function(report.nodeid)
                found[name] = found.get(name, 0.0) + report.duration
    long = {name: round(seconds, 1) for name, seconds in sorted(found.items()) if seconds > QUICK_S}
    DURATIONS.write_text(json.dumps(long, indent=0) + "\n")


def _function(nodeid: str) -> str:
    return nodeid.partition("[")[0]
