"""Every token of an episode with its numbers, and the reason why it was or was not trained on."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

from airloop.errors import AirError
from airloop.learn.losses.sequence_mask import KEYS, SequenceMask, sequence_mask
from airloop.runs.damaged import Reader, items, number, table, words
from airloop.text.keys import pieces_without_keys
from airloop_view.folder import Collection
from airloop_view.index import WATCHED
from airloop_view.vocabulary import Vocabularies
from airloop_view.weight import too_heavy

MOST = 9_000  # tokens of one answer: what fits, with all their numbers, below its largest size
RANGES = ("lp", "tlp", "gap", "entropy", "adv")
DIGITS = 5  # significant ones of a number; more say nothing and fill the answer


@dataclass(frozen=True)
class Rules:
    """Of the run's loss: what decides whether a sampled token has a part in it."""

    kl: bool = False
    mask: tuple[float, float] | None = None
    by_turn: bool = False
    sequences: SequenceMask | None = None


def model_of(collection: Collection) -> str | None:
    reader = Reader(collection.path)
    if too_heavy(collection.path, WATCHED):
        return None
    if collection.kind == "evaluation":
        return words(reader.json("evaluation.json").get("model"))
    return words(table(_config(reader).get("model")).get("name")) if collection.kind == "run" else None


def _config(reader: Reader) -> dict[str, Any]:
    closed = (reader.path / "config.toml").is_symlink() or too_heavy(reader.path, WATCHED)
    return {} if closed else reader.toml("config.toml")


def rules_of(collection: Collection) -> Rules:
    config = _config(Reader(collection.path)) if collection.kind == "run" else {}
    loss = table(table(config.get("trainer")).get("loss"))
    mask = None
    if loss.get("importance_mode") == "mask":
        mask = (number(loss.get("importance_floor")) or 0.0, number(loss.get("importance_cap")) or math.inf)
    return Rules(
        kl=(number(loss.get("kl_beta")) or 0.0) > 0,
        mask=mask,
        by_turn=loss.get("credit") == "turn",
        sequences=sequence_mask({key: number(loss.get(key)) for key in KEYS}),
    )


def token_view(
    collection: Collection,
    episode: dict[str, Any],
    record: dict[str, Any] | None,
    vocabularies: Vocabularies,
    branch: int,
    offset: int,
    why_untrained: str,
    members: int,
) -> dict[str, Any]:
    branches = episode["branches"]
    if not branches:
        return _empty("nothing of this episode was recorded as tokens")
    if branch >= len(branches):
        raise AirError(f"There is no branch {branch}: this episode has {len(branches)}.", "count from 0.")
    rules = rules_of(collection)
    vocabulary = vocabularies.of(model_of(collection))
    own = branches[branch]
    reasons = Reasons(record, rules, why_untrained, members, _left_out(rules, branches, record))
    texts = pieces_without_keys(vocabulary.texts(own["tokens"]))
    trainer, entropies = _of_branch(record, "logprobs", branch), _of_branch(record, "entropies", branch)
    advantage = number(record.get("advantage")) if record else None
    tokens, trained, sampled_before = [], 0, False
    for place, (id, train, turn) in enumerate(zip(own["tokens"], own["train"], own["turns"], strict=True)):
        token: dict[str, Any] = {"t": texts[place], "id": id, "turn": turn, "train": train}
        if train:
            lp = own["logprobs"][trained] if trained < len(own["logprobs"]) else None
            tlp = number(trainer[trained]) if trained < len(trainer) else None
            entropy = number(entropies[trained]) if trained < len(entropies) else None
            token |= {"lp": _short(lp), "tlp": _short(tlp), "entropy": _short(entropy), "adv": _short(advantage)}
            token["gap"] = _short(tlp - lp) if tlp is not None and lp is not None else None
            token["version"] = _version(episode, turn)
            token["why"] = reasons.sampled(lp, tlp, advantage)
            trained += 1
        else:
            token |= {"lp": None, "tlp": None, "gap": None, "entropy": None, "adv": None, "version": None}
            token["why"] = reasons.seen(turn, sampled_before, branches, branch)
        sampled_before = sampled_before or turn >= 0
        tokens.append(token)
    page = tokens[offset : offset + MOST]
    return {
        "branches": len(branches),
        "branch": branch,
        "tokenizer": vocabulary.state,
        "tokens": page,
        "total": len(tokens),
        "offset": offset,
        "reasons": reasons.texts,
        "ranges": {name: _range(tokens, name) for name in RANGES},
    }


def _empty(why: str) -> dict[str, Any]:
    return {
        "branches": 0,
        "branch": 0,
        "tokenizer": f"missing: {why}",
        "tokens": [],
        "total": 0,
        "offset": 0,
        "reasons": [],
        "ranges": {name: [None, None] for name in RANGES},
    }


class Reasons:
    """Sentences by number: thousands of tokens share a few of them."""

    def __init__(
        self, record: dict[str, Any] | None, rules: Rules, untrained: str, members: int, left_out: str
    ) -> None:
        self.texts: list[str] = []
        self._places: dict[str, int] = {}
        self._elsewhere: dict[int, str] = {}
        self._record = record
        self._rules = rules
        self._untrained = untrained
        self._members = members
        self._left_out = left_out

    def _say(self, text: str) -> int:
        if text not in self._places:
            self._places[text] = len(self.texts)
            self.texts.append(text)
        return self._places[text]

    def seen(self, turn: int, sampled_before: bool, branches: list[dict[str, Any]], branch: int) -> int:
        if turn >= 0:
            if turn not in self._elsewhere:
                others = [i for i, other in enumerate(branches) if i != branch and _trains(other, turn)]
                where = f"it counts in branch {others[0] + 1}" if others else "it counts in no branch"
                self._elsewhere[turn] = f"sampled in turn {turn + 1}; here it is only seen, {where}"
            return self._say(self._elsewhere[turn])
        if sampled_before:
            return self._say("an answer of the environment or a word of the template: seen, never trained")
        return self._say("part of the prompt: seen, never trained")

    def sampled(self, lp: float | None, tlp: float | None, advantage: float | None) -> int:
        if self._record is None or self._record.get("fate") != "trained":
            return self._say(self._untrained)
        if self._left_out:
            return self._say(self._left_out)
        if self._rules.mask and lp is not None and tlp is not None:
            ratio = math.exp(min(tlp - lp, 700.0))
            low, high = self._rules.mask
            if not low <= ratio <= high:
                bound = f"less than {low:g}" if ratio < low else f"more than {high:g}"
                return self._say(f"stale: left out, as it is now {bound} times as probable as when it was sampled")
        if not advantage:
            if self._rules.by_turn:
                return self._say("sampled, advantage 0 as the mean over its turns; the step's record keeps no other")
            if self._rules.kl:
                return self._say("sampled, advantage 0: only the KL term counts it")
            return self._say(f"zero advantage: all {self._members} of its group scored the same")
        mean = " (the mean over its turns)" if self._rules.by_turn else ""
        return self._say(f"sampled, trained with advantage {advantage:+.3g}{mean}")


def _left_out(rules: Rules, branches: list[dict[str, Any]], record: dict[str, Any] | None) -> str:
    """Why the episode as a whole has no part in the loss, where a mask of sequences left it out."""
    if rules.sequences is None:
        return ""
    logs = [
        now - then
        for i, branch in enumerate(branches)
        for then, given in zip(branch["logprobs"], _of_branch(record, "logprobs", i), strict=False)
        if (now := number(given)) is not None
    ]
    cut = rules.sequences.cut(logs)
    (low, high), (least, most) = rules.sequences.geo, rules.sequences.sequence
    if cut.geo:
        mean = math.exp(min(sum(logs) / len(logs), 700.0))
        return f"stale: the whole episode is left out, its mean ratio of {mean:.3g} is not within {low:g} and {high:g}"
    if cut.sequence:
        return f"stale: the whole episode is left out, the ratio of one token is not within {least:g} and {most:g}"
    return ""


def _trains(branch: dict[str, Any], turn: int) -> bool:
    return any(train and at == turn for train, at in zip(branch["train"], branch["turns"], strict=True))


def _of_branch(record: dict[str, Any] | None, name: str, branch: int) -> list[Any]:
    found = items((record or {}).get(name))
    return items(found[branch]) if branch < len(found) else []


def _version(episode: dict[str, Any], turn: int) -> int | None:
    sampled = episode["sampled"]
    found: int | None = sampled[turn]["version"] if 0 <= turn < len(sampled) else None
    return found


def _short(value: float | None) -> float | None:
    return None if value is None or not math.isfinite(value) else float(f"{value:.{DIGITS}g}")


def _range(tokens: list[dict[str, Any]], name: str) -> list[float | None]:
    found = [token[name] for token in tokens if token[name] is not None]
    return [min(found), max(found)] if found else [None, None]
