"""One episode: a question, three tools over its documents, and at the end the scores."""

from __future__ import annotations

from collections.abc import Collection, Sequence

from airloop.envs.base import Opening, Session
from airloop.types import Action, Message, Observation, Score
from airloop_envs.musique import scores
from airloop_envs.musique.args import MusiqueArgs
from airloop_envs.musique.questions import Document, Question
from airloop_envs.musique.retrievers import Retriever
from airloop_envs.musique.tools import BadCall, Complete, GetDocument, Retrieve, read_call, schemas

SYSTEM = {
    "full": """\
Answer the question from documents that you cannot see yet. Search for them with retrieve_documents, look at one in \
full with get_document, and give your answer with complete.
A question needs facts from several documents: find the first one, then use what it says to search for the next. \
Search for names and key words rather than for the whole question, and do not open what you do not need.
Answer in as few words as possible: a name, a date, a number. Cite the ids of exactly those documents that the answer \
rests on. You have {turns} replies; the last one must be complete.""",
    "short": "Search the documents, then answer in few words. {turns} replies, the last is complete.",
}
NOTHING = "No document has these words. Use names from the question or from documents you have seen."
ONE_CALL = "One call in a reply: this one did not run. Make it in your next reply."
LAST = "(Last reply: call complete.)"


class MusiqueSession(Session):
    def __init__(self, question: Question, args: MusiqueArgs, retriever: Retriever, names: Collection[str]) -> None:
        self.question = question
        self.args = args
        self.retriever = retriever
        self.names = names  # of the reward components that count
        self.turn = 0
        self.calls_in_turn = 0
        self.calls = self.valid_calls = self.searches = 0
        self.shown: dict[int, int] = {}  # documents the agent has seen, and how much of each
        self.final: Complete | None = None

    async def begin(self) -> Opening:
        args = self.args
        return Opening(
            (
                Message(role="system", content=SYSTEM[args.prompt].format(turns=args.max_turns)),
                Message(role="user", content=self.question.text),
            ),
            schemas(args.prompt, args.top_n, args.max_top_n),
        )

    def view(self, messages: Sequence[Message]) -> Sequence[Message]:
        """Asked once before every reply: so turns are counted here."""
        self.turn += 1
        self.calls_in_turn = 0
        return messages

    async def act(self, action: Action) -> Observation:
        self.calls += 1
        self.calls_in_turn += 1
        try:
            if self.args.calls_per_turn and self.calls_in_turn > self.args.calls_per_turn:
                raise BadCall(ONE_CALL if self.args.calls_per_turn == 1 else f"{self._at_most()} this one did not run.")
            call = read_call(action, self.args.max_top_n)
            match call:
                case Retrieve():
                    text = await self._search(call.query, call.top_n or self.args.top_n)
                case GetDocument():
                    text = self._open(call.id)
                case Complete():
                    self.final = call
                    text = "Done."
        except BadCall as error:
            return Observation(self._with_hint(str(error)), failed=True)
        self.valid_calls += 1
        return Observation(text if self.final else self._with_hint(text), done=self.final is not None)

    def invalid(self, action: Action) -> Observation:
        self.calls += 1
        return Observation(self._with_hint(action.text), failed=True)

    def _at_most(self) -> str:
        return f"At most {self.args.calls_per_turn} calls in a reply:"

    def _with_hint(self, text: str) -> str:
        return f"{text}\n{LAST}" if self.turn == self.args.max_turns - 1 else text

    async def _search(self, query: str, top_n: int) -> str:
        self.searches += 1
        best = (await self.retriever.rank(self.question, query))[:top_n]
        found = [d for id in best if (d := self.question.document(id)) is not None]
        return "\n".join(self._show(document, self.args.paragraph_chars) for document in found) or NOTHING

    def _open(self, id: int) -> str:
        document = self.question.document(id)
        if document is None:
            raise BadCall(f"There is no document {id}. Ids are the numbers in [brackets] that a search shows.")
        return self._show(document, self.args.document_chars)

    def _show(self, document: Document, limit: int) -> str:
        """A text that is in the conversation already is not repeated."""
        head = f"[{document.id}] {document.title}"
        text = cut(document.text, limit)
        if document.id in self.shown and len(text) <= self.shown[document.id]:
            return f"{head} (shown above)"
        self.shown[document.id] = len(text)
        return f"{head}\n{text}"

    async def finish(self) -> Score:
        outcome = scores.Outcome(
            answer=self.final.final_answer if self.final else None,
            retrieved=frozenset(self.shown),
            cited=frozenset(self.final.cited_doc_ids if self.final else ()),
            calls=self.calls,
            valid_calls=self.valid_calls,
        )
        question = self.question
        values = scores.measure(outcome, question.answers, question.supporting, question.hops)
        counts = {
            "completed": float(self.final is not None),
            "searches": float(self.searches),
            "documents_shown": float(len(self.shown)),
            "documents_cited": float(len(outcome.cited)),
            "answer_words": float(len((outcome.answer or "").split())),
        }
        worth = scores.paid(values, question.hops)
        return Score({name: worth[name] for name in self.names}, {**values, **counts})


def cut(text: str, limit: int) -> str:
    """At most `limit` characters, ended at a word; 0: all of it."""
    if not limit or len(text) <= limit:
        return text
    head = text[:limit]
    if not text[limit].isspace():
        head = head.rpartition(" ")[0] or head
    return f"{head} …"
