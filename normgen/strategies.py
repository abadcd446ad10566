"""The strategies: what each template pair takes, and how its kernels are launched.

A strategy knows no step.  ``sizes`` are the run-time integers of a direction,
``constants`` its constexprs beside HIDDEN_SIZE and ALIGNMENT; ``tiles`` is how many
programs would hold all rows, one tile each, in terms of ``n_rows`` and ``options``.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from normgen.launch import Direction


@dataclass(frozen=True)
class Strategy:
    """One way of mapping rows to programs."""

    name: str
    sizes: dict[Direction, tuple[str, ...]]
    constants: tuple[str, ...]
    tiles: str
    how: dict[Direction, str]

    def told(self, direction: Direction, words: Mapping[str, str]) -> str:
        """How rows are mapped to programs, in the words for what a row is."""
        return self.how[direction].format_map(words)

    def template(self, direction: Direction) -> str:
        """The name of the template of a direction."""
        return f"{direction}/{self.name}.py.jinja"


STRATEGIES = {
    strategy.name: strategy
    for strategy in (
        Strategy(
            name="rows",
            sizes={"forward": ("n_rows",), "backward": ("n_rows",)},
            constants=("BLOCK_SIZE", "ROWS_PER_PROGRAM"),
            tiles='triton.cdiv(n_rows, options["ROWS_PER_PROGRAM"])',
            how={
                "forward": "A program holds {several} in registers.",
                "backward": "A fixed number of {programs} walks over the rows, "
                "ROWS_PER_PROGRAM at a time.",
            },
        ),
        Strategy(
            name="row",
            sizes={"forward": (), "backward": ("n_rows",)},
            constants=("BLOCK_SIZE",),
            tiles="n_rows",
            how={
                "forward": "A program holds {whole} in registers.",
                "backward": "A fixed number of {programs} walks over the rows, one at "
                "a time.",
            },
        ),
        Strategy(
            name="channel",
            sizes={"forward": ("n_rows",), "backward": ("n_rows",)},
            constants=("BLOCK_SIZE", "ROWS_PER_PROGRAM"),
            tiles='triton.cdiv(n_rows, options["ROWS_PER_PROGRAM"])',
            how={
                "forward": "A program holds ROWS_PER_PROGRAM adjacent rows in "
                "registers; their columns are n_rows apart.",
                "backward": "A fixed number of programs walks over the rows, "
                "ROWS_PER_PROGRAM adjacent ones at a time; their columns are n_rows "
                "apart.",
            },
        ),
        Strategy(
            name="loop",
            sizes={"forward": (), "backward": ("n_rows",)},
            constants=("BLOCK_SIZE",),
            tiles="n_rows",
            how={
                "forward": "A program walks over {one} in chunks: a sweep for each "
                "mean, then one for the result.",
                "backward": "A fixed number of {programs} walks over the rows, each in "
                "chunks.",
            },
        ),
    )
}
