"""Splits: rows shared out among parts by ratio, at random, without taking a group apart."""

from __future__ import annotations

import json
from array import array
from collections.abc import Iterable, Sequence
from hashlib import blake2b
from random import Random
from typing import NamedTuple

from stateroom.errors import BadTask
from stateroom.rollout import SourceRow


class Part(NamedTuple):
    """A part of a split, and how large it is in relation to the others."""

    name: str
    ratio: float


def split_rows(rows: Iterable[SourceRow], parts: Sequence[Part], *, by: str | None = None, seed: int = 0) -> bytearray:
    """The part of each row, as its place among `parts`: the same seed gives the same split.

    Rows with the same value in the field `by` are in the same part. Groups are taken in random order, and each goes to
    the part that lacks most of its rows. 9 bytes are kept of a row, and a digest of each group.
    """
    groups, sizes = _groups(rows, by)
    order = array("I", range(len(sizes)))
    Random(seed).shuffle(order)
    whole = sum(part.ratio for part in parts)
    missing = [part.ratio / whole * len(groups) for part in parts]
    part_of = bytearray(len(sizes))
    for group in order:
        part = max(range(len(parts)), key=missing.__getitem__)
        missing[part] -= sizes[group]
        part_of[group] = part
    return bytearray(part_of[group] for group in groups)


def _groups(rows: Iterable[SourceRow], by: str | None) -> tuple[array[int], array[int]]:
    """The number of each row's group, and the size of each group; without a field, each row is a group."""
    groups, sizes = array("I"), array("I")
    known: dict[bytes, int] = {}
    for each in rows:
        group = len(sizes) if by is None else known.setdefault(_digest(each, by), len(sizes))
        if group == len(sizes):
            sizes.append(0)
        sizes[group] += 1
        groups.append(group)
    return groups, sizes


def _digest(each: SourceRow, by: str) -> bytes:
    row = each.row()
    if by not in row:
        raise BadTask(f"{each.where}: there is no field {by!r} to group by; it has {', '.join(row) or 'none'}")
    return blake2b(json.dumps(row[by], sort_keys=True).encode(), digest_size=16).digest()
