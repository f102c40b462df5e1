"""The environment `musique`: multi-hop questions over documents that have to be found first."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cached_property
from typing import ClassVar

from airloop.envs.base import ActionFormat, Environment
from airloop.types import Agent, Task, Trajectory
from airloop_envs.musique.args import MusiqueArgs
from airloop_envs.musique.library import GENERATED_COUNTS, Library
from airloop_envs.musique.questions import Question, arrange
from airloop_envs.musique.retrievers import Recent, Retriever, make_retriever
from airloop_envs.musique.scores import BALANCED, COMPONENTS, normalise
from airloop_envs.musique.scripted import scripted_agent
from airloop_envs.musique.session import MusiqueSession


class MusiqueEnv(Environment[MusiqueArgs]):
    """Questions whose answer takes several documents: search them, read, cite and answer, all by tool calls."""

    name: ClassVar[str] = "musique"
    action_format: ClassVar[ActionFormat] = "tools"
    success: ClassVar[str | None] = "f1"
    family_label: ClassVar[str] = "hops"
    reward_weights: Mapping[str, float] = BALANCED

    def __init__(self, args: MusiqueArgs | None = None) -> None:
        super().__init__(args)
        args = self.args
        self.library = Library(args.datasets, args.test_datasets, args.held_out_share, args.seed)
        self._arranged = Recent(lambda question: arrange(question, args.noise_rate, args.seed))
        if args.retriever in ("semantic", "hybrid"):
            _ = self.retriever  # what is not installed is told now, not in the first episode

    @cached_property
    def retriever(self) -> Retriever:
        return make_retriever(self.args.retriever, self.args.embedding_model)

    @property
    def components(self) -> tuple[str, ...]:
        return COMPONENTS

    @property
    def max_turns(self) -> int:
        return self.args.max_turns

    def tasks(self, split: str) -> Sequence[Task]:
        """The documents are not in a task: it is saved with every trajectory, and its id finds them again."""
        return [
            Task(self.name, q.id, split, {"question": q.text, "answers": list(q.answers), "hops": q.hops}, q.family)
            for q in self.library.split(split)
        ]

    def trains_only(self, arg: str, split: str) -> bool:
        """With a set of its own, test is the same whatever is trained on."""
        return arg == "datasets" and split == "test" and self.library.test_datasets is not None

    def answer_of(self, trajectory: Trajectory) -> str | None:
        last = trajectory.turns[-1].actions[-1:] if trajectory.ending == "done" else ()
        said = [str(action.arguments.get("final_answer", "")) for action in last if action.name == "complete"]
        return normalise(said[0]) if said else None

    def count(self, split: str) -> int:
        if self.args == MusiqueArgs():
            return GENERATED_COUNTS[split]
        return super().count(split)

    def question(self, task: Task) -> Question:
        """As its episodes see it."""
        return self._arranged.of(self.library.question(task.id))

    def open(self, task: Task, seed: int) -> MusiqueSession:
        """The seed has no use here: noise and order belong to the question, so that a group shares them."""
        return MusiqueSession(self.question(task), self.args, self.retriever, tuple(self.reward_weights))

    def scripted(self, name: str, task: Task, seed: int) -> Agent:
        return scripted_agent(name, self.question(task), seed, self.args)
