"""The search of the site, as the theme's page does it in the browser: lunr, with the theme's tokens and boosts."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

from lunr.builder import Builder
from lunr.stop_word_filter import WORDS, stop_word_filter

TAG = re.compile(r"<[^>]+>")


class SiteSearch:
    """The index that a built site has in `search/search_index.json`."""

    def __init__(self, site: Path) -> None:
        written = json.loads((site / "search" / "search_index.json").read_text(encoding="utf-8"))
        self._separator = re.compile(written["config"]["separator"])
        builder = Builder()
        builder.b(0)
        builder.pipeline.add(stop_word_filter)  # the theme takes the stemmer out, and puts a * behind each word instead
        builder.ref("location")
        for name in ("title", "text"):
            boost = written["config"]["fields"][name]["boost"]
            builder.field(name, boost, lambda section, name=name: self._words(section[name]))
        for section in written["docs"]:
            builder.add(section, {"boost": section.get("boost", 1)})
        self._index = builder.build()

    def results(self, query: str) -> list[list[str]]:
        """The results from the best to the last: each is a page, with its sections that were found."""
        words, clauses = self._words(query.lower()), []
        for word in query.lower().split():
            parts = self._words(word)
            clauses += [*parts[:-1], f"{parts[-1]}*"] * len(parts)
        scores = {
            found["ref"]: found["score"] * (1 + self._boost(found, words) ** 2)
            for found in self._index.search(" ".join(clauses))
        }
        pages: dict[str, list[str]] = {}
        for place in sorted(scores, key=lambda place: -scores[place]):
            pages.setdefault(place.partition("#")[0], []).append(place)
        return list(pages.values())

    def _words(self, text: str) -> list[str]:
        return [word for part in TAG.split(text) for word in self._separator.split(part) if word]

    @staticmethod
    def _boost(found: dict[str, Any], words: list[str]) -> float:
        """More for a whole page than for a section of one, and for each word that is there."""
        terms = found["match_data"].metadata
        there = {word for word in words if any(term.startswith(word) for term in terms)}
        counted = {word for word in words if word in there or word not in WORDS}
        return ("#" not in found["ref"]) + len(there) / len(counted)
