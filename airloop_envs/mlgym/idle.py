"""Whether what was handed in is anybody's work: the starter's file, or the sample, is not."""

from __future__ import annotations

import io
import math
import tokenize
from collections.abc import Mapping

from airloop_envs.mlgym.spec import TaskSpec
from airloop_envs.mlgym.submissions import Submission
from airloop_envs.mlgym.workspace import SUBMISSION, graders, starter_files

LARGEST = 1 << 20  # bytes of a file that is read token by token
# Of what a program does nothing depends on these.
IDLE_TOKENS = {tokenize.COMMENT, tokenize.NL, tokenize.ENCODING, tokenize.ENDMARKER}


def same_work(spec: TaskSpec, submission: Submission) -> bool:
    """Whether the files are the starter's or the sample's: tables but for white space at line ends, code but for
    comments and blank lines. Further files beside the starter's change nothing: nobody calls them."""
    if spec.entry_point == "CSVSubmissionTasks":
        sample = spec.sample_submission
        if sample is None or not sample.is_file() or SUBMISSION not in submission.files:
            return False
        return _lines(sample.read_bytes()) == _lines(submission.files[SUBMISSION])
    if spec.entry_point != "PythonSubmissionTasks":
        return False
    code = starter_code(spec)
    return bool(code) and all(_same(text, submission.files.get(name)) for name, text in code.items())


def starter_code(spec: TaskSpec) -> Mapping[str, bytes]:
    is_its = graders(spec)
    return {name: path.read_bytes() for name, path in starter_files(spec) if name.endswith(".py") and not is_its(name)}


def same_score(spec: TaskSpec, score: float, others: tuple[float | None, ...]) -> bool:
    """Whether a score is that of the starter or of the sample. Where scores are drawn anew each time, equal ones say
    nothing."""
    if spec.yardstick.noise > 0:
        return False
    return any(math.isclose(score, other, rel_tol=1e-9, abs_tol=1e-12) for other in others if other is not None)


def _lines(content: bytes) -> list[bytes]:
    return [line.rstrip() for line in content.strip().splitlines()]


def _same(starter: bytes, given: bytes | None) -> bool:
    if given is None:
        return False
    return starter == given or (len(given) <= LARGEST and _tokens(starter) == _tokens(given))


def _tokens(code: bytes) -> list[tuple[int, str]] | bytes:
    """What is no Python is itself: equal only to its own bytes."""
    try:
        found = list(tokenize.tokenize(io.BytesIO(code).readline))
    except (tokenize.TokenError, SyntaxError, ValueError, RecursionError, MemoryError):
        return code
    kept = [token for token in found if token.type not in IDLE_TOKENS]
    # Indentation by its depth, not by its width; line ends of blank lines are NL, of others NEWLINE.
    blank = {tokenize.INDENT, tokenize.DEDENT, tokenize.NEWLINE}
    return [(token.type, "" if token.type in blank else token.string) for token in kept]
