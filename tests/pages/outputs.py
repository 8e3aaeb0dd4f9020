"""What a page shows of an output, compared with what was printed."""

import re

PROGRESS = re.compile(r"━━━|^.+: \d+(/\d+)?, \d+:\d\d:\d\d$")
"""A progress bar, or a line of progress: no page shows one."""


def shows(shown: str, printed: str, *, more: bool = False) -> bool:
    """Whether a page shows what was printed; with `more`, whether it shows how that begins."""
    pattern = "".join(r"(?:.*\n)*?" if line == "…" else _pattern(line) for line in _lines(shown))
    text = "".join(f"{line}\n" for line in _lines(printed))
    return bool(re.match(pattern, text) if more else re.fullmatch(pattern, text))


def _pattern(line: str) -> str:
    """Matches a line, which a page may break where it is too long."""
    words = (".*?".join(map(re.escape, word.split("…"))) for word in line.split())
    return "".join(rf"{word}[ \n]" for word in words)


def _lines(text: str) -> list[str]:
    """The lines that are not blank, without progress bars, and with single blanks and short rules."""
    lines = (" ".join(re.sub("─+", "─", line).split()) for line in text.splitlines() if not PROGRESS.search(line))
    return [line for line in lines if line]
