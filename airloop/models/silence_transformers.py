"""transformers without its progress bars and advice."""

from __future__ import annotations

import contextlib
import logging
import os
import warnings
from collections.abc import Iterator


@contextlib.contextmanager
def silenced() -> Iterator[None]:
    """Silences transformers' progress bars, advice and warnings; errors still raise."""
    # We encode one text at a time; the pool only earns a warning at each fork of a sandbox.
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
    from transformers.utils import logging as hf_logging

    verbosity, bars = hf_logging.get_verbosity(), hf_logging.is_progress_bar_enabled()
    hf_logging.set_verbosity(logging.ERROR)
    hf_logging.disable_progress_bar()
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        hf_logging.set_verbosity(verbosity)
        if bars:
            hf_logging.enable_progress_bar()
