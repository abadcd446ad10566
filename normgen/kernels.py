"""What all kernel templates place: arguments, and sweeps sliced out of the maths.

A sweep is one pass over a row.  It is cut out of the lines by what it must make and
what it is given; loads follow from what its lines read.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field

from normgen.dtypes import CONCRETE, FLOAT32, Dtype
from normgen.expr import is_name, names
from normgen.graph import Line
from normgen.statistics import Mean


@dataclass(frozen=True)
class Argument:
    """One kernel argument: its declaration, and its line in the docstring."""

    name: str
    doc: str
    annotation: str = ""

    @property
    def declaration(self) -> str:
        """As it stands in the signature."""
        return f"{self.name}: {self.annotation}" if self.annotation else self.name

    @property
    def is_constexpr(self) -> bool:
        """Whether each value of it is a compile of its own."""
        return self.annotation == "tl.constexpr"


@dataclass(frozen=True)
class Store:
    """A value stored per element through the row pointer ``row``."""

    value: str
    row: str


@dataclass(frozen=True)
class Sweep:
    """One pass over a row: what it loads, makes, averages and stores.

    ``published`` values are stored here and read back by a later sweep.
    """

    elements: tuple[str, ...]
    columns: tuple[str, ...]
    lines: tuple[str, ...]
    made: frozenset[str]
    means: tuple[Mean, ...] = ()
    stores: tuple[Store, ...] = ()
    published: tuple[str, ...] = ()


@dataclass(frozen=True)
class Kernel:
    """What any kernel has.

    ``elements`` are the tensors it loads per element, ``columns`` per column;
    ``roundings`` the dtypes that it is told by a constexpr.
    """

    name: str
    how: str
    arguments: tuple[Argument, ...]
    roundings: Mapping[str, Dtype]
    elements: tuple[str, ...]
    columns: tuple[str, ...]

    @property
    def runtime_arguments(self) -> tuple[str, ...]:
        """The arguments that are no constexprs, in order."""
        return tuple(a.name for a in self.arguments if not a.is_constexpr)


@dataclass
class Slicer:
    """Cuts sweeps out of ``lines`` and prints them for one kernel.

    ``spaces`` maps every tensor that may be loaded to its index space; ``pointers`` are
    the tensors that the kernel always has, whose element types can be named.
    """

    lines: tuple[Line, ...]
    spaces: Mapping[str, str]
    tensor_dtypes: Mapping[str, Dtype]
    pointers: tuple[str, ...]
    roundings: dict[str, Dtype] = field(default_factory=dict)

    def sweep(
        self,
        targets: Iterable[str],
        given: Collection[str] = (),
        means: tuple[Mean, ...] = (),
        stores: tuple[Store, ...] = (),
        published: tuple[str, ...] = (),
    ) -> Sweep:
        """The sweep that makes ``targets`` and the terms of ``means``."""
        targets = set(targets).union(*(names(mean.term) for mean in means))
        lines = self.cut(targets, given)
        return Sweep(
            elements=self.loads(lines, targets, "element"),
            columns=self.loads(lines, targets, "column"),
            lines=tuple(map(self.text, lines)),
            made=frozenset(line.target for line in lines),
            means=means,
            stores=stores,
            published=published,
        )

    def cut(self, targets: Iterable[str], given: Collection[str] = ()) -> list[Line]:
        """The lines that make ``targets``, in order, where ``given`` exists already."""
        needed, kept = set(targets), []
        for line in reversed(self.lines):
            if line.target in needed and line.target not in given:
                kept.append(line)
                needed |= line.uses
        return kept[::-1]

    def loads(
        self, lines: Iterable[Line], uses: Iterable[str], space: str
    ) -> tuple[str, ...]:
        """The tensors of one index space that ``lines`` and ``uses`` read."""
        lines = list(lines)
        read = set(uses).union(*(line.uses for line in lines))
        read -= {line.target for line in lines}
        return tuple(t for t, s in self.spaces.items() if s == space and t in read)

    def text(self, line: Line) -> str:
        """A line as Triton: rounded to its dtype, and float32 again."""
        formula = line.formula
        if line.dtype != FLOAT32:
            formula = formula if is_name(formula) else f"({formula})"
            formula += f".to({self._dtype(line)}).to(tl.float32)"
        return f"{line.target} {'+=' if line.accumulates else '='} {formula}"

    def _dtype(self, line: Line) -> str:
        if line.dtype <= set(CONCRETE):
            return f"tl.{next(iter(line.dtype))}"
        for tensor in self.pointers:
            if self.tensor_dtypes.get(tensor) == line.dtype:
                return f"{tensor}_ptr.dtype.element_ty"
        name = f"{line.target.upper()}_DTYPE"
        self.roundings[name] = line.dtype
        return name


def arguments(
    tensors: Mapping[str, str],
    strided: Collection[str],
    sizes: Iterable[str],
    roundings: Iterable[str],
    constants: Iterable[str],
) -> tuple[Argument, ...]:
    """An argument list in its order: tensors, strides, sizes, constexprs."""
    made = [Argument(f"{name}_ptr", doc) for name, doc in tensors.items()]
    made += [Argument(f"{name}_row_stride", "", "tl.int64") for name in strided]
    made += [Argument(name, DOCS[name]) for name in sizes]
    for name in ("HIDDEN_SIZE", *roundings, "ALIGNMENT", *constants):
        made.append(
            Argument(name, DOCS.get(name) or _rounding_doc(name), "tl.constexpr")
        )
    return tuple(made)


def _rounding_doc(name: str) -> str:
    value = name.removesuffix("_DTYPE").lower()
    return f"the dtype of {value}, as torch promotes its operands"


def row_doc(tensor: str) -> str:
    """How the rows of an input lie in memory."""
    return f"[n_rows, HIDDEN_SIZE], rows {tensor}_row_stride apart"


COLUMN_DOC = "[HIDDEN_SIZE]"
OUTPUT_DOC = "[n_rows, HIDDEN_SIZE], contiguous"
STATISTIC_DOC = "[n_rows], float32"
PARTIAL_DOC = "[programs, HIDDEN_SIZE], float32: one row of sums a program"
DOCS = {
    "n_rows": "how many rows there are",
    "eps": "the epsilon",
    "HIDDEN_SIZE": "the row length",
    "ALIGNMENT": "16 where all pointers and rows are aligned to 16 bytes, else 1",
    "BLOCK_SIZE": "columns a program holds at once, a power of two",
    "ROWS_PER_PROGRAM": "rows a program holds at once, a power of two",
}
