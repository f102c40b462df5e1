"""The contract of an environment, and how one is found by name.

An environment knows tasks, messages, actions and rewards, and nothing of tokens or models. All state of
an episode is in its session, so any number of sessions may be open at once.
"""

from __future__ import annotations

import difflib
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType, TracebackType
from typing import TYPE_CHECKING, Any, ClassVar, Generic, Literal, Self, TypeVar, get_args

from pydantic import BaseModel, ConfigDict, ValidationError

from airloop.envs.files import VERIFIERS, check_file, find_class, is_file_id, names_function, title
from airloop.errors import AirError, MissingRequirement, TaskProblem
from airloop.extras import OURS, check_extra
from airloop.plugins import package_of, plugins
from airloop.text.spelling import misspelt, shortened
from airloop.types import Action, Agent, Message, Observation, Score, Task, Trajectory

# How replies become actions: one fenced shell-like command, tool calls, or the whole reply as it is.
ActionFormat = Literal["command", "tools", "text"]


class EnvArgs(BaseModel):
    """Base of every environment's `args` table: typed, and unknown names are refused."""

    model_config = ConfigDict(extra="forbid", frozen=True)


if TYPE_CHECKING:  # Python's own have defaults from 3.13 on
    import typing_extensions

    A = typing_extensions.TypeVar("A", bound=EnvArgs, default=EnvArgs)
else:
    A = TypeVar("A", bound=EnvArgs)


@dataclass(frozen=True)
class Opening:
    """The first messages of an episode and the schemas of the tools it may call."""

    messages: tuple[Message, ...]
    tools: tuple[Mapping[str, Any], ...] = ()


class Session(ABC):
    """One episode. `finish` is called exactly once, whatever ended the episode, except after
    InfraError. Anything but InfraError raised here is a defect and stops the run with its trajectory.

        async with env.open(task, seed=0) as session:
            opening = await session.begin()
            observation = await session.act(Action("text", "7"))
            score = await session.finish()
    """

    # Of the last reply, as they were sampled, set before act() is called: numbers to count. None where the agent is no
    # model of ours: a script, a person, a URL.
    reply_ids: tuple[int, ...] | None = None

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Called of every session, also of one whose opening failed or was interrupted: it may be half made."""
        return None

    @abstractmethod
    async def begin(self) -> Opening:
        """The episode's first messages, and the tools that it has."""

    @abstractmethod
    async def act(self, action: Action) -> Observation:
        """What one action of a reply did; a reply may have several. `done` ends the episode."""

    @abstractmethod
    async def finish(self) -> Score:
        """What the episode was worth, also of one that ran out of turns, context or time."""

    def invalid(self, action: Action) -> Observation:
        """The answer to a reply without a valid action; an environment may price it."""
        return Observation(action.text, failed=True)

    def plain_reply(self, text: str) -> Action | None:
        """Where tools may be called, what a reply means that calls none of them: Action("text", text) where the agent
        may answer in plain words, a call where the reply is one in all but its form. None: it is invalid."""
        return None

    def view(self, messages: Sequence[Message]) -> Sequence[Message]:
        """What the agent is shown of the conversation so far; all of it, as it is, unless overridden.

        Asked before every reply, always with the whole conversation. Old observations may become a short note;
        replies should stay as they are, so that their tokens can be kept. Each time the beginning changes, what
        follows is read anew by the model and trained as a sequence of its own: shorten several old observations
        at once and seldom, rather than one in every turn.
        """
        return messages


class Environment(ABC, Generic[A]):
    """Tasks, and sessions to play them in. `tasks` and `open` must be given; the rest has defaults. One that has
    arguments names their class:

        class MyEnv(Environment[MyArgs]):
            def tasks(self, split: str) -> list[Task]:
                return [Task(self.name, str(i), split) for i in range(self.args.count)]
    """

    # Its id: what a config says in [[orchestrator.env]]. By default that, or its file's name.
    name: ClassVar[str] = ""
    # How a reply becomes actions; by default it is one, as it is.
    action_format: ClassVar[ActionFormat] = "text"
    # What a config may set in `args = { … }`: the class in the brackets, unless it is named here.
    Args: ClassVar[type[EnvArgs]] = EnvArgs
    args: A
    # The metric, from 0 to 1, that its users want (`correct`, `improved`). It comes before the reward wherever results
    # are shown, chosen or compared: a reward can rise without it. None: only the reward is known.
    success: ClassVar[str | None] = None
    # What `tasks` may be asked for; another name is a misspelt one, and refused before it is.
    splits: ClassVar[tuple[str, ...]] = ("train", "eval", "test")
    # What a family of its tasks is ("level", "hops"), where comparisons count by families.
    family_label: ClassVar[str] = "task"
    # Weights of the reward components: these, unless the config names others (weigh). The only place that has them.
    # Where neither names any, each component that a score has counts 1.
    reward_weights: Mapping[str, float] = MappingProxyType({})
    # Components that say nothing of success by themselves (a command that ran, a penalty), each with the weight beside
    # the others at which it must not change who earns more. `air tasks audit` judges them so; alone they teach nothing.
    shaping: Mapping[str, float] = MappingProxyType({})
    # Components that are never above 0: that a policy earns none of them is as it should be.
    penalties: ClassVar[tuple[str, ...]] = ()
    # Components that no script can earn, since they read what only a model's replies have: the audit leaves them out.
    beyond_scripts: Sequence[str] = ()
    # Scripts that do the work as it is meant, well or badly, and scripts that go round it: every one of the first must
    # earn more than every one of the second. "weak" is honest work that succeeds sometimes; it may be missing.
    honest: ClassVar[tuple[str, ...]] = ("oracle", "weak")
    dishonest: ClassVar[tuple[str, ...]] = ("noop", "cheat")
    # How a component given per turn becomes the episode's: its "sum" over turns (the default) or its "mean".
    turn_reward_mode: Mapping[str, Literal["sum", "mean"]] = MappingProxyType({})

    def __init_subclass__(cls, **more: Any) -> None:
        super().__init_subclass__(**more)
        if hasattr(cls, "check_world"):  # its name until 2026-11: nobody would ask it, and nobody would see that
            raise AirError(f"{cls.__name__}.check_world is called check_sandbox now.", "rename it.")
        for base in cls.__dict__.get("__orig_bases__", ()):
            for named in get_args(base):  # left open in a base of several environments: Base(Environment[A])
                if isinstance(named, type) and issubclass(named, EnvArgs) and "Args" not in cls.__dict__:
                    cls.Args = named

    def __init__(self, args: A | None = None) -> None:
        """AirError for arguments of another environment's class. Without any, all have their defaults."""
        given = self.Args() if args is None else args
        if not isinstance(given, self.Args):
            raise AirError(
                f"{type(self).__name__} takes {self.Args.__name__}, not {type(given).__name__}.",
                f"{type(self).__name__}({self.Args.__name__}(…))",
            )
        self.args = given  # type: ignore[assignment]

    @property
    def max_turns(self) -> int:
        """The most replies of an episode; one, unless overridden."""
        return 1

    @abstractmethod
    def tasks(self, split: str) -> Sequence[Task]:
        """The tasks of "train", "eval" or "test" (or another of its `splits`), always in the same order."""

    def count(self, split: str) -> int:
        """How many there are. An environment that makes its tasks, and knows their number, may say it at once."""
        return len(self.tasks(split))

    def trains_only(self, arg: str, split: str) -> bool:
        """Whether an argument chooses what is trained on and changes nothing of this split: then runs that differ in it
        can be compared on the split. Not unless it is known."""
        return False

    @abstractmethod
    def open(self, task: Task, seed: int) -> Session:
        """A fresh session; whatever is random in it follows from the seed."""

    def scripted(self, name: str, task: Task, seed: int) -> Agent:
        """A fresh scripted agent. `air tasks audit` asks for "oracle", "noop" and "cheat", and would like "weak" (see
        `honest`); a supervised start asks for "demo". AirError for a name that it does not know."""
        raise AirError(
            f"Environment {self.name!r} has no scripted agent {name!r}.",
            f"define {type(self).__name__}.scripted(name, task, seed); `air init` writes an example.",
        )

    @property
    def components(self) -> tuple[str, ...]:
        """The reward components that a config may weigh; those with a weight, unless there are more."""
        return tuple(self.reward_weights)

    def weigh(self, weights: Mapping[str, float]) -> None:
        """The components that a config wants and their weights, told before the first episode. An environment
        that can give others than its own defaults chooses by them. One that says which `components` it gives has no
        others."""
        if type(self).components is not Environment.components:
            check_components(self.name, weights, self.components)
        self.reward_weights = dict(weights)

    def group_rewards(self, trajectories: Sequence[Trajectory]) -> Sequence[Mapping[str, float]]:
        """For each of a group's scored trajectories, reward components that exist only in comparison with the
        others (a rank, say); none unless overridden. Weighted like any other component.

        Asked once in training, when the group is complete, and again with the same trajectories when a resumed
        run repeats the step: it must be a function of what it is given. Evaluations, whose episodes have no
        group, do not ask.
        """
        return [{} for _ in trajectories]

    def answer_of(self, trajectory: Trajectory) -> str | None:
        """What an episode answered, the same for answers that are the same: an evaluation with several episodes a task
        counts votes by it. None: nothing, or there is no such thing as one answer here."""
        return None

    def lacks(self) -> Sequence[MissingRequirement]:
        """What is missing on this machine before an episode can be opened, as far as it can be told without opening
        anything: `air tasks list` asks, so it must be quick."""
        return ()

    def check_tasks(self) -> Iterator[TaskProblem]:
        """What is wrong with the tasks that its arguments name, those included that cannot be opened. The doctor asks
        before anything is loaded."""
        return iter(())

    def check_answers(self) -> Iterator[TaskProblem]:
        """Answers that an agent could read where it works; the doctor asks likewise."""
        return iter(())

    def catalogue(self) -> tuple[Sequence[Mapping[str, Any]], str] | None:
        """Its tasks by name, where they have names: as data, and as the table that `air tasks list` prints."""
        return None

    async def check_sandbox(self) -> Sequence[MissingRequirement]:
        """What actions need and do not find, looked for where they will run: in the very sandbox that agents get. The
        doctor asks before any episode; AirError or InfraError where there is no such place."""
        return ()

    def warm(self) -> None:
        """Begin, in the background, what takes time before the first episode."""
        return None

    def abandon(self) -> None:
        """Let go of everything at once, without an event loop: the run could not be started."""
        return None

    async def close(self) -> None:
        """The run is over: end workers, sandboxes and servers."""
        self.abandon()


def check_components(env: str, weights: Mapping[str, float], known: Collection[str]) -> None:
    """A component that an environment cannot give would count 0 in every episode."""
    for name in weights:
        if name not in known:
            near = difflib.get_close_matches(name, known, n=1)
            hint = f"did you mean {near[0]!r}? " if near else ""
            raise AirError(
                f"Environment {env!r} has no reward component {name!r}.", f"{hint}Known: {', '.join(known)}."
            )


def load_environment(env_id: str, args: Mapping[str, Any] | None = None) -> Environment:
    """The environment registered under `env_id`, or of one file, with its checked arguments. AirError for an unknown id
    or argument, with the nearest known one.

        env = load_environment("arith", {"max_number": 9})
        env.tasks("eval")[0].payload
    """
    kind = find_environment(env_id)()
    if not kind.name:
        kind.name = title(env_id)
    return kind(check_args(env_id, kind.Args, args or {}))


def find_environment(env_id: str) -> Callable[[], type[Environment]]:
    """What imports the environment, once it is certain that all it needs is installed. Imports nothing of it."""
    if env_id.startswith(VERIFIERS):
        foreign = plugins("envs")["verifiers"].load
        return lambda: foreign().of(env_id)
    if is_file_id(env_id):
        check_file(env_id)
        if names_function(env_id):  # an agent's program: its file is not imported here
            program = plugins("envs")["program"].load
            return lambda: program().of(env_id)
        return lambda: find_class(env_id, Environment)
    registered = plugins("envs")
    if env_id not in registered:
        near = difflib.get_close_matches(env_id, registered, n=1)
        hint = f'did you mean id = "{near[0]}"? ' if near else ""
        raise AirError(
            f"No environment is registered as {env_id!r}.",
            f"{hint}Known: {', '.join(sorted(registered)) or 'none'}; a file's is named by its path and class "
            '(id = "./my_env.py:MyEnv"), a package adds one with an entry point in the group "airloop.envs".',
        )
    found = registered[env_id]
    for extra in found.extras:
        check_extra(extra, f"The environment {env_id!r}", package_of(found) or OURS)
    return found.load


def find_args(env_id: str) -> type[EnvArgs] | None:
    """The class of an environment's arguments; None where it cannot be had, which is said when it is loaded."""
    try:
        return find_environment(env_id)().Args
    except (AirError, ImportError):
        return None


def check_args(env_id: str, model: type[EnvArgs], args: Mapping[str, Any]) -> EnvArgs:
    """The arguments, checked; AirError has all that is wrong with them."""
    try:
        return model(**args)
    except ValidationError as error:
        told = [_wrong_argument(env_id, model, detail) for detail in error.errors(include_url=False)]
    if len(told) == 1:
        raise AirError(*told[0])
    lines = [f"{number}. {problem}\n  fix: {fix}" for number, (problem, fix) in enumerate(told, 1)]
    raise AirError("\n".join([f"Environment {env_id!r} refuses {len(told)} arguments:", *lines]))


def _wrong_argument(env_id: str, model: type[EnvArgs], detail: Any) -> tuple[str, str]:
    """What is wrong with one of them, or with several together, and what to change."""
    key = ".".join(str(part) for part in detail["loc"])
    message = detail["msg"].removeprefix("Value error, ")
    if not key:
        return f"Environment {env_id!r}: {message}.", "correct the args of this environment that the sentence names."
    if detail["type"] == "extra_forbidden":
        near = misspelt(key, model.model_fields) or shortened(key, model.model_fields)
        hint = f"did you mean {near!r}? " if near else ""
        return f"Environment {env_id!r} has no argument {key!r}.", f"{hint}Known: {', '.join(model.model_fields)}."
    if detail["type"] == "missing":
        about = getattr(model.model_fields.get(key), "description", None) or "its value"
        return f"Environment {env_id!r} needs the argument {key!r}.", f"give it in args: {key} = … ({about})."
    return (
        f"Environment {env_id!r}, argument {key!r} = {detail['input']!r}: {message}.",
        f"correct args = {{ {key} = … }} of this environment.",
    )
