"""Environments of one file, for packages: one whose sandbox is lost at a word and that shortens what is past, and one
that compares the episodes of a group."""

from airloop import Environment, InfraError, Message, Observation, Score, Session, Task
from airloop.envs.base import Opening


class Talk(Session):
    def __init__(self, task):
        self.task, self.said = task, []

    async def begin(self):
        return Opening((Message(role="system", content="You count."), Message(role="user", content=self.task.id)))

    async def act(self, action):
        if action.text == "lose it":
            raise InfraError("the sandbox is gone")
        self.said.append(action.text)
        return Observation(f"heard {action.text}", done=action.text == "stop")

    async def finish(self):
        numbers = [float(word) for word in self.said if word.isdecimal()]
        return Score({"number": sum(numbers)}, {"words": float(len(self.said))})

    def view(self, messages):
        """The first messages and the last two."""
        return messages if len(messages) <= 4 else [*messages[:2], *messages[-2:]]


class TroubleEnv(Environment):
    success = None

    @property
    def max_turns(self):
        return 3

    def tasks(self, split):
        return [Task(self.name, f"{split}-{number}", split) for number in range(3)]

    def open(self, task, seed):
        return Talk(task)


class RankEnv(TroubleEnv):
    def __init__(self, args=None):
        super().__init__(args)
        self.reward_weights = {"number": 0.5, "best": 2.0}

    @property
    def max_turns(self):
        return 1

    def group_rewards(self, trajectories):
        most = max(t.rewards["number"] for t in trajectories)
        return [{"best": float(t.rewards["number"] == most)} for t in trajectories]
