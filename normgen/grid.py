"""Where a program stands: its rows, its sample of a batch, its group of columns.

Strategies know rows alone.  Samples share the first axis of the grid, groups of columns
have one of their own: before anything else, a kernel moves its pointers to the first
row of its sample and the first column of its group, and what follows is a norm of plain
rows.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass

from normgen.graph import Graph
from normgen.spaces import COLUMN, GROUP, HEAD, SAMPLE, Space
from normgen.spec import Norm


@dataclass(frozen=True)
class Pointer:
    """A pointer of a kernel: how what it points to is laid out, and whether it may be
    None."""

    kind: str
    optional: bool = False


@dataclass(frozen=True)
class Grid:
    """What programs are shared among, and what the sizes of a row are called.

    ``length`` columns are normalized together, of a row of ``row_size``.  ``channel``
    rows lie across their memory: a column is a plane of n_rows adjacent values.
    """

    samples: bool
    groups: bool
    channel: bool
    length: str
    row_size: str

    @property
    def program(self) -> str:
        """Which of the programs that share rows a program is."""
        index = "tl.program_id(0).to(tl.int64)"
        return f"{index} % programs" if self.samples else index

    @property
    def programs(self) -> str:
        """How many programs share rows."""
        return "programs" if self.samples else "tl.num_programs(0)"

    @property
    def shares(self) -> tuple[str, ...]:
        """What programs are shared among, by the host's names of how many there are."""
        named = {"n_samples": self.samples, "n_groups": self.groups}
        return tuple(name for name, there in named.items() if there)

    @property
    def heads(self) -> bool:
        """Whether the groups of a row are heads: they share what is no head's own."""
        return self.row_size == "ROW_SIZE"

    def kind(self, space: Space) -> str:
        """How an operand lies that is loaded once a program."""
        shared = (GROUP, COLUMN) if self.heads else (GROUP,)
        return {SAMPLE: "sample", **dict.fromkeys(shared, "group")}.get(space, "column")

    @property
    def constants(self) -> tuple[str, ...]:
        """The constexprs of the sizes of a row."""
        return tuple(dict.fromkeys((self.row_size, self.length)))

    @property
    def input_kind(self) -> str:
        """How inputs lie in memory: planes lie like results."""
        return "output" if self.channel else "input"

    @property
    def sizes(self) -> tuple[str, ...]:
        """The integers that moving the pointers takes."""
        return ("n_rows", "n_samples") if self.samples else ()

    @property
    def statistic_row(self) -> str:
        """The index of a row's statistics."""
        return "row * tl.num_programs(1)" if self.groups else "row"

    @property
    def unit(self) -> str:
        """What a statistic is taken of."""
        if not self.groups:
            return "row"
        return "head" if self.heads else "group"

    @property
    def words(self) -> dict[str, str]:
        """How one tells what a program holds, for :meth:`Strategy.told`."""
        if not self.groups:
            return {
                "several": "ROWS_PER_PROGRAM whole rows",
                "whole": "one whole row",
                "one": "one row",
                "programs": "programs",
            }
        return {
            "several": f"one {self.unit} of ROWS_PER_PROGRAM rows",
            "whole": f"one {self.unit} of a row",
            "one": f"one {self.unit} of a row",
            "programs": f"programs a {self.unit}",
        }

    @property
    def docs(self) -> dict[str, str]:
        """What arguments are, where samples and groups make a difference."""
        made = {}
        if self.samples:
            made["n_rows"] = "how many rows a sample has"
            made["n_samples"] = "how many samples there are"
        if self.channel:
            made["n_rows"] = "how many rows, adjacent in memory, a sample has"
            made["ALIGNMENT"] = (
                "16 where all pointers and planes are aligned to 16 bytes, else 1"
            )
        if self.row_size == "ROW_SIZE":
            made["ROW_SIZE"] = "the length of all heads together"
            made["HIDDEN_SIZE"] = "the length of a head"
        if self.length == "GROUP_SIZE":
            made["GROUP_SIZE"] = "the length of a group"
        return made

    def row_doc(self, tensor: str) -> str:
        """How the rows of an input lie in memory."""
        if self.channel:
            return self.output_doc
        return f"[{self._rows}, {self.row_size}], rows {tensor}_row_stride apart"

    @property
    def output_doc(self) -> str:
        """The shape of what is stored row by row."""
        if self.channel:
            return f"[samples, {self.row_size}, n_rows], contiguous"
        return f"[{self._rows}, {self.row_size}], contiguous"

    @property
    def statistic_doc(self) -> str:
        """The shape of a statistic."""
        groups = f", {self.unit}s" if self.groups else ""
        return f"[{self._rows}{groups}], float32"

    def partial_doc(self, space: Space) -> str:
        """The shape of partial sums."""
        per = "samples, programs" if self.samples else "programs"
        if space == SAMPLE:
            per = "programs, samples"
            if self.heads:
                shape = f"programs, heads, samples, {self.length}"
                return f"[{shape}], float32: one row of sums a program"
        return f"[{per}, {self.row_size}], float32: one row of sums a program"

    def given_strides(
        self, strided: Iterable[str], spaces: Mapping[str, Space]
    ) -> tuple[str, ...]:
        """Those of the strided tensors whose stride a kernel is told."""
        return tuple(t for t in strided if not self.channel or spaces[t] == SAMPLE)

    def column_doc(self, space: Space, tensor: str) -> str:
        """The shape of what is loaded once a program."""
        own = HEAD if self.heads else COLUMN
        size = self.row_size if space == own else self.length
        if space == SAMPLE:
            size = self.length if self.heads else self.row_size
            return f"[samples, {size}], rows {tensor}_row_stride apart"
        return f"[{size}]"

    @property
    def _rows(self) -> str:
        return "samples * n_rows" if self.samples else "n_rows"

    def partial_rows(self, space: Space) -> str:
        """How far apart the partial sums of two programs are."""
        if space == SAMPLE:
            return "sums_stride"
        return self.row_size

    def prelude(self, pointers: Mapping[str, Pointer]) -> tuple[str, ...]:
        """The lines that move pointers to the sample and the group of a program."""
        lines: list[str] = []
        if self.samples:
            lines.append(
                "# A sample is a batch of rows: pointers move to its first one."
            )
            lines.append("programs = tl.num_programs(0) // n_samples")
            lines.append("sample = tl.program_id(0).to(tl.int64) // programs")
            lines += _moves(pointers, self._to_sample)
            if any(p.kind == "sample_partial" for p in pointers.values()):
                lines.append(f"sums_stride = n_samples * {self.row_size}")
        if self.groups:
            lines.append(
                f"# Each {self.unit} is a row: pointers move to its first column."
            )
            lines.append(f"{self.unit} = tl.program_id(1).to(tl.int64)")
            lines.append(f"first_col = {self.unit} * {self.length}")
            lines += _moves(pointers, self._to_group)
        return (*lines, "") if lines else ()

    def _to_sample(self, name: str, kind: str) -> str | None:
        rows = "sample * n_rows * tl.num_programs(1)" if self.groups else None
        own = self.length if self.heads else self.row_size
        return {
            "input": f"sample * n_rows * {name}_row_stride",
            "output": f"sample * n_rows * {self.row_size}",
            "sample": f"sample * {name}_row_stride",
            "statistic": rows or "sample * n_rows",
            "sample_partial": f"sample * {own}",
            "partial": f"sample * programs * {self.row_size}",
        }.get(kind)

    def _to_group(self, name: str, kind: str) -> str | None:
        offsets = {"statistic": self.unit, "group": None}
        if self.heads:
            # heads share what a sample has, and have partial sums of their own
            offsets |= {"sample": None, "sample_partial": "n_samples * first_col"}
        return offsets.get(kind, "first_col")


def _moves(
    pointers: Mapping[str, Pointer], offset: Callable[[str, str], str | None]
) -> list[str]:
    lines = []
    for name, pointer in pointers.items():
        distance = offset(name, pointer.kind)
        line = f"{name}_ptr += {distance}"
        if distance is not None and pointer.optional:
            lines += [f"if {name}_ptr is not None:", f"    {line}"]
        elif distance is not None:
            lines.append(line)
    return lines


def grid(norm: Norm, graph: Graph) -> Grid:
    """The grid of a norm's kernels."""
    spaces = set(graph.tensors.values())
    sizes = ("HIDDEN_SIZE", "HIDDEN_SIZE")
    if norm.group_size is not None:
        sizes = ("GROUP_SIZE", "HIDDEN_SIZE")
    if HEAD in spaces:
        sizes = ("HIDDEN_SIZE", "ROW_SIZE")
    channel = norm.axis == "channel"
    length, row_size = sizes
    return Grid(
        samples=SAMPLE in spaces or channel,
        groups=length != row_size,
        channel=channel,
        length=length,
        row_size=row_size,
    )
