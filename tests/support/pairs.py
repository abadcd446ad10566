"""All pairs of field values in few specs: a greedy covering array.

Every pair of values of two different axes that some valid combination holds is held by
one of the combinations returned.
"""

from __future__ import annotations

import itertools
import random
from collections.abc import Callable, Hashable, Mapping, Sequence

Combination = dict[str, Hashable]
Pair = frozenset[tuple[str, Hashable]]


def pairs_of(combination: Mapping[str, Hashable]) -> set[Pair]:
    return {frozenset(two) for two in itertools.combinations(combination.items(), 2)}


def all_pairs(axes: Mapping[str, Sequence[Hashable]]) -> set[Pair]:
    return {
        frozenset({(a, x), (b, y)})
        for a, b in itertools.combinations(axes, 2)
        for x in axes[a]
        for y in axes[b]
    }


def covering_array(
    axes: Mapping[str, Sequence[Hashable]],
    problems: Callable[[Combination], int],
    attempts: int = 8,
    enough: int = 3,
) -> tuple[list[Combination], set[Pair]]:
    """Combinations that cover every coverable pair, and the pairs found in none.

    ``problems`` counts the rules that a combination breaks: 0 where it is valid.
    """
    rng = random.Random(0)
    open_pairs = all_pairs(axes)
    order = sorted(open_pairs, key=lambda pair: sorted(map(repr, pair)))
    chosen: list[Combination] = []
    unreachable: set[Pair] = set()
    for pair in order:
        if pair not in open_pairs:
            continue
        tries = (
            repair(_complete(dict(pair), axes, open_pairs, rng), pair, axes, problems)
            for _ in range(attempts)
        )
        found = list(itertools.islice((t for t in tries if t is not None), enough))
        if not found:  # as few others as can be
            plain = {axis: values[0] for axis, values in axes.items()} | dict(pair)
            only = repair(plain, pair, axes, problems, deep=True)
            found = [] if only is None else [only]
        if not found:
            unreachable.add(pair)
            open_pairs.discard(pair)
            continue
        best = max(found, key=lambda c: len(pairs_of(c) & open_pairs))
        chosen.append(best)
        open_pairs -= pairs_of(best)
    return chosen, unreachable.difference(*map(pairs_of, chosen))


def _complete(
    partial: Combination,
    axes: Mapping[str, Sequence[Hashable]],
    open_pairs: set[Pair],
    rng: random.Random,
) -> Combination:
    """Values for the other axes, in random order, each covering many open pairs."""
    combination = dict(partial)
    rest = [axis for axis in axes if axis not in combination]
    rng.shuffle(rest)
    for axis in rest:
        items = list(combination.items())

        def gain(value: Hashable, axis: str = axis, items=items) -> tuple[int, float]:
            new = (axis, value)
            covered = sum(frozenset((new, item)) in open_pairs for item in items)
            return covered, rng.random()

        combination[axis] = max(axes[axis], key=gain)
    return {axis: combination[axis] for axis in axes}


def repair(
    combination: Combination,
    pair: Pair,
    axes: Mapping[str, Sequence[Hashable]],
    problems: Callable[[Combination], int],
    deep: bool = False,
) -> Combination | None:
    """The combination after as few single changes as it takes to be valid.

    A ``deep`` repair changes two fields at once where no change of one helps.
    """
    free = [axis for axis in axes if axis not in dict(pair)]
    broken = problems(combination)
    while broken:
        changes = ({**combination, axis: v} for axis in free for v in axes[axis])
        better = min(changes, key=problems)
        if problems(better) >= broken and deep:
            single = [(axis, v) for axis in free for v in axes[axis]]
            twice = (
                {**combination, **dict(two)}
                for two in itertools.combinations(single, 2)
            )
            better = min(twice, key=problems)
        if problems(better) >= broken:
            return None
        combination, broken = better, problems(better)
    return combination
