"""The archive: contradictory documents, the rules for the decisive one, and random documents."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from datetime import date
from random import Random
from typing import Literal, get_args

from pydantic import BaseModel

Kind = Literal["register", "survey", "newspaper", "brochure", "forum"]

RULES = """You check a claim against an archive whose documents contradict each other. These rules decide:
- A document counts if it is about what is claimed, of exactly that subject, and if no document withdraws it.
- The kinds of documents rank, from the best to the least: {ranking}. Only the best kind counts of which there is one.
- Among documents of that kind the newest decides.
A search shows titles. You see the kind, the date and the text of a document when you read it: read all that may count.
Then give your verdict, once, and cite the document that decides."""

QUESTION = "Is this true? {claim}"

SENTENCES = {
    "opening": "{subject} opened in {value}.",
    "length": "{subject} is {value} metres long.",
    "visitors": "{subject} has {value} visitors a year.",
    "builder": "{subject} was built by {value}.",
    "owner": "{subject} belongs to {value}.",
}
"""The sentence for each fact in a claim or a document."""

NUMBERS = {"opening": (1880, 1980), "length": (40, 900), "visitors": (1_000, 90_000)}
NAMES = ("Adler and Sons", "the Bay Company", "Clara Voss", "the Dunn family", "Emil Okafor", "the Free Guild")

FRAMES: dict[Kind, str] = {
    "register": "Entry in the register. {said} Sealed and signed.",
    "survey": "Surveyed on this day. {said}",
    "newspaper": "From our correspondent. {said} The mayor had no comment.",
    "brochure": "Come and see! {said} Children are free.",
    "forum": "Hello all. {said} Correct me if I am wrong.",
}
WITHDRAWAL = "Document {id} is withdrawn."

PLACES = ("Alder", "Birch", "Castle", "Dover", "Ember", "Falcon", "Granite", "Heron", "Ivy", "Juniper", "Kestrel")
THINGS = ("Bridge", "Hall", "Mill", "Museum", "Pier", "Station", "Theatre", "Tunnel")
SUBJECT = rf"((?:Old )?(?:{'|'.join(PLACES)}) (?:{'|'.join(THINGS)}))"
PATTERNS = {
    thing: re.compile(sentence.replace(".", r"\.").format(subject=SUBJECT, value="(.+?)"))
    for thing, sentence in SENTENCES.items()
}
TITLES = ("{subject}", "About {subject}", "Note on {subject}", "{subject}, once more", "On {subject}")
DAYS = (date(1990, 1, 1).toordinal(), date(2025, 1, 1).toordinal())


class Document(BaseModel):
    """A document, and its relation to the claim."""

    kind: Kind
    date: date
    title: str
    text: str
    supports: bool | None = None
    """Whether it supports the claim; None if it is about something else."""
    withdraws: str | None = None
    """The id of the document that it withdraws."""


def decisive(documents: Mapping[str, Document], ranking: Sequence[Kind]) -> str:
    """The id of the decisive document by the rules. Raises `ValueError` if none counts."""
    withdrawn = {document.withdraws for document in documents.values()}
    about = {key: document for key, document in documents.items() if document.supports is not None}
    counts = {key: document for key, document in about.items() if key not in withdrawn}
    return min(counts, key=lambda key: (ranking.index(counts[key].kind), -counts[key].date.toordinal()))


def to_compare(documents: Mapping[str, Document]) -> set[str]:
    """The ids of the documents to read: those about the claim, and those that withdraw one of them."""
    about = {key for key, document in documents.items() if document.supports is not None}
    return about | {key for key, document in documents.items() if document.withdraws in about}


def values_in(text: str) -> dict[tuple[str, str], str]:
    """The facts in a text: values by fact and subject."""
    return {(thing, of): value for thing, pattern in PATTERNS.items() for of, value in pattern.findall(text)}


def draw(rng: Random) -> tuple[str, list[Kind], dict[str, Document]]:
    """A claim, the ranking of kinds, and an archive that decides the claim.

    The decisive document is contradicted by an older one of its kind, by a newer one of a lesser kind, and sometimes by
    a withdrawn one that would otherwise decide. Some documents are about another subject or fact.
    """
    subject = f"{rng.choice(PLACES)} {rng.choice(THINGS)}"
    thing, another = rng.sample(sorted(SENTENCES), 2)
    ranking: list[Kind] = rng.sample(get_args(Kind), 4)
    best = rng.randrange(3)
    claimed, denied = _values(thing, rng)
    right, wrong = rng.sample([claimed, denied], 2)

    def document(
        kind: Kind, of: str, said: str, supports: bool | None = None, withdraws: str | None = None
    ) -> Document:
        title, text = rng.choice(TITLES).format(subject=of), FRAMES[kind].format(said=said)
        return Document(kind=kind, date=date.min, title=title, text=text, supports=supports, withdraws=withdraws)

    def about(kind: Kind, value: str) -> Document:
        return document(kind, subject, _sentence(thing, subject, value), value == claimed)

    def beside() -> Document:
        of, what = rng.choice([(subject, another), (f"Old {subject}", thing)])
        return document(rng.choice(ranking), of, _sentence(what, of, _values(what, rng)[0]))

    lesser = ranking[best + 1 :]
    early = [about(ranking[best], wrong), about(rng.choice(lesser), rng.choice([right, wrong])), beside()]
    late = [about(rng.choice(lesser), wrong), beside(), beside()]
    archive = [*rng.sample(early, 3), about(ranking[best], right), *rng.sample(late, 3)]
    ids = [f"D-{number}" for number in rng.sample(range(10, 100), len(archive) + 2)]
    if rng.random() < 0.5:
        kind, void = rng.choice(ranking[: best + 1]), ids[len(archive)]
        archive += [about(kind, wrong), document(kind, subject, WITHDRAWAL.format(id=void), withdraws=void)]
    for entry, day in zip(archive, sorted(rng.sample(range(*DAYS), len(archive))), strict=True):
        entry.date = date.fromordinal(day)
    return _sentence(thing, subject, claimed), ranking, dict(sorted(zip(ids, archive, strict=False)))


def _sentence(thing: str, subject: str, value: str) -> str:
    return SENTENCES[thing].format(subject=subject, value=value)


def _values(thing: str, rng: Random) -> list[str]:
    """Two different values of a fact."""
    return [str(value) for value in rng.sample(range(*NUMBERS[thing]) if thing in NUMBERS else NAMES, 2)]
