"""A fact checker's desk: a claim, an archive to search and read, and a verdict with a citation."""

from __future__ import annotations

from random import Random
from typing import Any, Literal, Self

from pydantic import BaseModel, model_validator

from stateroom import Environment, Episode, State, Task, ToolError, Verdict, tool
from stateroom.gallery.facts.archive import QUESTION, RULES, Document, Kind, decisive, draw, to_compare
from stateroom.gallery.facts.policies import NoisyPolicy, ReferencePolicy

MAX_RESULTS = 20
"""The most documents that a search shows."""


class Judgement(BaseModel):
    """The verdict on the claim, and the cited document."""

    verdict: Literal["true", "false"]
    citation: str


class Desk(State):
    archive: dict[str, Document] = {}
    """The documents by id."""
    read: set[str] = set()
    judgement: Judgement | None = None


class FactsTask(Task):
    ranking: list[Kind]
    """The kinds of documents, best first."""
    archive: dict[str, Document]

    @model_validator(mode="after")
    def _is_decided(self) -> Self:
        decisive(self.archive, self.ranking)
        return self


class FactsEnvironment(Environment[Desk, FactsTask]):
    """Check a claim against contradictory sources, and cite the decisive one."""

    examples = "tasks.jsonl"
    policies = {"reference": ReferencePolicy, "noisy": NoisyPolicy}

    def seed(self, task: FactsTask) -> Desk:
        return Desk(archive=task.archive)

    @tool(effect="read")
    def search(self, state: Desk, query: str) -> list[dict[str, str]]:
        """Search for documents with all words of a query in their title or text. Returns their ids and titles.

        Args:
            query: The words.
        """
        words = query.casefold().split()
        results = [
            {"id": key, "title": document.title}
            for key, document in state.archive.items()
            if all(word in f"{document.title} {document.text}".casefold() for word in words)
        ]
        return results[:MAX_RESULTS]

    @tool
    def read_document(self, state: Desk, document_id: str) -> dict[str, str]:
        """Read a document: its kind, date, title and text.

        Args:
            document_id: The document's id.
        """
        document = _open(state, document_id)
        state.read.add(document_id)
        return document.model_dump(mode="json", include={"kind", "date", "title", "text"})

    @tool
    def give_verdict(self, state: Desk, verdict: Literal["true", "false"], citation: str) -> dict[str, bool]:
        """Give the verdict on the claim. It is final: you cannot read documents or change it afterwards.

        Args:
            verdict: Whether the claim is true or false.
            citation: The id of the decisive document.
        """
        _open(state, citation)
        state.judgement = Judgement(verdict=verdict, citation=citation)
        return {"success": True}

    def verify(self, state: Desk, episode: Episode) -> Verdict:
        """1 for the right verdict, citing the right document, once all deciding documents were read."""
        task: FactsTask = episode.task
        citation, needed = decisive(task.archive, task.ranking), to_compare(task.archive)
        verdict = "true" if task.archive[citation].supports else "false"
        judgement = state.judgement
        components = {
            "verdict": float(judgement is not None and judgement.verdict == verdict),
            "citation": float(judgement is not None and judgement.citation == citation),
            "read": len(needed & state.read) / len(needed),
        }
        compared = f"{len(needed & state.read)} of {len(needed)} documents were compared"
        return Verdict(
            reward=float(all(part == 1 for part in components.values())),
            components=components,
            metrics={"read_beside": float(len(state.read - needed))},
            reason=f"it is {verdict} by {citation}; {compared}",
        )

    @classmethod
    def generate(cls, rng: Random) -> dict[str, Any]:
        """A new task: a claim, and seven or nine documents."""
        claim, ranking, archive = draw(rng)
        rules = RULES.format(ranking=", ".join(ranking))
        return {
            "responses_create_params": {
                "input": [
                    {"role": "system", "content": rules},
                    {"role": "user", "content": QUESTION.format(claim=claim)},
                ]
            },
            "ranking": ranking,
            "archive": {key: entry.model_dump(mode="json", exclude_defaults=True) for key, entry in archive.items()},
        }


def _open(state: Desk, document_id: str) -> Document:
    if state.judgement is not None:
        raise ToolError("the verdict is already given and final")
    if document_id not in state.archive:
        raise ToolError(f"unknown document {document_id!r}; use search to find ids")
    return state.archive[document_id]
