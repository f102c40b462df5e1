"""Does training see what sampling saw, and train what was sampled? Proofs on the probe's own episodes."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import TYPE_CHECKING

from airloop.doctor.base import Finding, check, passed

if TYPE_CHECKING:
    from airloop.doctor.case import Case
    from airloop.doctor.proof_tools import Answer
    from airloop.learn.batches import Row
    from airloop.models.chat import ChatTokenizer
    from airloop.types import Trajectory

# Around the sampled, trained tokens of a transcript.
OPEN, CLOSE = "⟦", "⟧"
PIECES = 3  # of a prompt, each changed by itself: a mask may hide its beginning only
TOOL_STRETCHES = 2
REPLY_TOKENS = 4  # of the engine's answer: the first ones see what was changed, or none do


@check("F1", "F7", stage="proof", title="trainer and engine agree on every sampled token")
def trainer_agrees(case: Case) -> Finding:
    """A gap that is too large to pass unseen is held against what rounding does to the same tokens (F8)."""
    from airloop.doctor.proof_tools import gap, quiet_gap, while_paused
    from airloop.learn.rounding import distances

    probe = case.replies
    trainer = probe.trainer
    counts = {row.key: (sum(row.train), len(trainer[row.key])) for row in probe.rows}
    if any(own != computed for own, computed in counts.values()):
        return Finding(
            "fail",
            f"the trainer computed {sum(c for _, c in counts.values())} log-probs for "
            f"{sum(o for o, _ in counts.values())} sampled tokens",
            "it counts other tokens than those that were sampled",
            "report it: the packing and the mask disagree.",
            ids=("F3",),
        )
    found = gap(probe.rows, trainer)
    dtype = str(probe.parts.policy.dtype).removeprefix("torch.")
    seen = f"mean gap {found:.2g} over {sum(n for n, _ in counts.values())} tokens in {dtype}"
    if found <= quiet_gap(probe.parts):
        return passed(seen)
    measured = while_paused(case, lambda: distances(probe.parts.learner, probe.rows, trainer))
    seen += f"; {measured} (at most {measured.most:.2g})"
    if measured.healthy:
        return passed(seen)
    return Finding(
        "fail",
        seen,
        f"{measured.wrong_side} computes other log-probs than rounding can explain: it sees something else (a wrong "
        "mask, other positions) or has other weights (an adapter on one side only)",
        'trainer.model.impl = "hf" and inference.model.enforce_eager = true take our own kernels out one by one.',
        {"trainer.model.impl": "hf"} if probe.parts.policy.impl != "hf" else {},
    )


@check("F1", stage="proof", title="answers depend on prompt and tool results")
def context_is_seen(case: Case) -> Finding:
    """A prompt, then a tool's result, is changed: log-probs after it must change, in the trainer and the engine."""
    from airloop.doctor.proof_tools import CHANGE, at_high_temperature

    # The shortest row with as many results of tools as there will be changed.
    row = min(case.replies.rows, key=lambda r: (-min(len(_stretches(r)), 1 + TOOL_STRETCHES), len(r.tokens)))
    smallest: dict[str, float] = {}
    with at_high_temperature(case.parts):
        trainer, engine = _Trainer(case, row), _Engine(case)
        for what, places in _changes(row, case.tokenizer):
            other = _changed(row, places)
            for side, moved in (
                ("the trainer", trainer.change(other, places[-1])),
                ("the engine", engine.change(row, other, places[-1])),
            ):
                if moved < CHANGE:
                    return _unseen(side, what, moved)
                smallest[f"{side}, {what}"] = min(moved, smallest.get(f"{side}, {what}", moved))
    shown = "; ".join(f"{name} {value:.2g}" for name, value in smallest.items())
    return passed(f"log-probs move when the context is changed, by at least: {shown}")


def _unseen(side: str, what: str, moved: float) -> Finding:
    return Finding(
        "fail",
        f"{what} was changed and {side}'s log-probs of the answer moved by {moved:.2g}",
        f"{side} does not see {what}: a loss mask used as attention mask does this. Ratios stay 1 and no metric moves, "
        "but nothing that depends on the task can be learned",
        "the model must attend to every token; the loss alone is masked. Attention masks are made in "
        + ("airloop/learn/batches.py (PackedPlan)." if side == "the trainer" else "airloop/engine/embedded/plan.py."),
    )


def _stretches(row: Row) -> list[tuple[int, int]]:
    """Where untrained tokens stand in front of trained ones: the prompt, then what answered each reply."""
    found, start = [], 0
    for i in range(1, len(row.train)):
        if row.train[i] and not row.train[i - 1]:
            found.append((start, i))
        if not row.train[i] and row.train[i - 1]:
            start = i
    return found


def _changes(row: Row, tokenizer: ChatTokenizer) -> Iterator[tuple[str, list[int]]]:
    """Places to change. The last token before a reply is left: the reply's first token is read off it in any case."""
    special = {*tokenizer.hf.all_special_ids, *tokenizer.stop_ids}
    (start, end), *results = _stretches(row)
    prompt = [i for i in range(start, end - 1) if row.tokens[i] not in special]
    size = max(1, len(prompt) // PIECES)
    for piece in [prompt[i : i + size] for i in range(0, size * PIECES, size)]:
        if piece:
            yield "the prompt", piece
    for start, end in results[:TOOL_STRETCHES]:
        if places := [i for i in range(start, end - 1) if row.tokens[i] not in special]:
            yield "a tool's result", places


def _changed(row: Row, places: list[int]) -> Row:
    """Each place gets its neighbour's token; where that is the same one, the text reads the same, so any other."""
    tokens = list(row.tokens)
    for i, place in enumerate(places):
        tokens[place] = row.tokens[places[(i + 1) % len(places)]]
    if tokens == list(row.tokens):
        others = [t for t in row.tokens if t != tokens[places[0]]]
        tokens[places[0]] = others[0]
    return replace(row, tokens=tuple(tokens))


class _Trainer:
    """One row at a time: what is not seen changes nothing only in equal shapes."""

    def __init__(self, case: Case, row: Row) -> None:
        self._learner, self._row = case.parts.learner, row
        self._before = self._learner.logprobs([row])[row.key]

    def change(self, other: Row, place: int) -> float:
        """The largest change of a trained token's log-prob behind the place."""
        after = self._learner.logprobs([other])[other.key]
        trained = [i for i, train in enumerate(self._row.train) if train]
        return max(abs(a - b) for i, a, b in zip(trained, self._before, after, strict=True) if i > place)


class _Engine:
    """Asked for the reply behind a place, with the same seed: the same draws, if it sees no difference."""

    def __init__(self, case: Case) -> None:
        self._case = case
        self._before: dict[int, Answer] = {}

    def change(self, row: Row, other: Row, place: int) -> float:
        from airloop.doctor.proof_tools import change

        end = next(i for i in range(place, len(row.train)) if row.train[i])
        if end not in self._before:
            self._before[end] = self._ask(row, end)
        return change(self._before[end], self._ask(other, end))

    def _ask(self, row: Row, end: int) -> Answer:
        from airloop.doctor.proof_tools import sample_replies

        return sample_replies(self._case, [row.tokens[:end]], REPLY_TOKENS)[0]


@check("F3", stage="proof", title="exactly the sampled tokens are trained")
def sampled_are_trained(case: Case) -> Finding:
    probe = case.replies
    wrong = [(t, why) for t in probe.trajectories if (why := _mistrained(t))]
    shown = max(probe.trajectories, key=lambda t: (bool(wrong) and t is wrong[0][0], min(len(t.turns), 3)))
    detail = marked(shown, case.tokenizer)
    sampled = sum(len(turn.sampled.token_ids) for t in probe.trajectories for turn in t.turns if turn.sampled)
    if not sampled:
        raise probe.no_reply
    if wrong:
        return Finding(
            "fail",
            f"in {len(wrong)} of {len(probe.trajectories)} episodes the trained tokens are not the sampled ones: "
            f"{wrong[0][1]}",
            "a loss on prompts or tool results teaches the model to write what it is told by others",
            "report it with the text below: `train` of a branch must be true for sampled tokens and for no others.",
            detail=detail,
        )
    total = sum(len(b.tokens) for t in probe.trajectories for b in t.branches)
    return passed(f"{sampled} of {total} tokens are trained, each as it was sampled", detail)


def _mistrained(trajectory: Trajectory) -> str:
    trained: dict[int, list[int]] = {}
    for branch in trajectory.branches:
        for token, train, turn in zip(branch.tokens, branch.train, branch.turns, strict=True):
            if train:
                trained.setdefault(turn, []).append(token)
    strange = len(trained.pop(-1, []))
    if strange:
        return f"{strange} tokens are trained that nobody sampled"
    for number, played in enumerate(trajectory.turns):
        own = list(played.sampled.token_ids) if played.sampled else []
        if trained.pop(number, []) != own:
            return f"of turn {number + 1}, other tokens are trained than the {len(own)} that were sampled"
    return f"tokens of turn {min(trained) + 1} are trained, which there was not" if trained else ""


def marked(trajectory: Trajectory, tokenizer: ChatTokenizer) -> str:
    """The episode's text as the model saw it, trained stretches between ⟦ and ⟧."""
    texts = []
    for branch in trajectory.branches:
        pieces, start = [], 0
        for i in range(1, len(branch.tokens) + 1):
            if i == len(branch.tokens) or branch.train[i] != branch.train[start]:
                text = tokenizer.decode(branch.tokens[start:i])
                pieces.append(f"{OPEN}{text}{CLOSE}" if branch.train[start] else text)
                start = i
        texts.append("".join(pieces))
    return "\n".join(texts)


def coloured(text: str) -> str:
    """For a terminal: what is trained in green. The marks stay, for those who do not see it."""
    return text.replace(OPEN, f"\x1b[1;32m{OPEN}").replace(CLOSE, f"{CLOSE}\x1b[0m")
