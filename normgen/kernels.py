"""What all kernel templates place: arguments, and sweeps sliced out of the maths.

A sweep is one pass over a row.  It is cut out of the lines by what it must make and
what it is given; loads follow from what its lines read.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field

from normgen.dtypes import CONCRETE, FLOAT32, Dtype
from normgen.expr import is_primary, names, substitute
from normgen.graph import Line
from normgen.grid import Grid
from normgen.layout import WIDTH
from normgen.notation import in_triton
from normgen.spaces import Space
from normgen.statistics import Reduction
from normgen.steps import BRANCH, SCALE, SCALE2, SHIFT, SHIFT2

#: how far in the lines of a sweep stand at most
DEEPEST = 12


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
class Mean:
    """A reduction as a kernel writes it: the sum of ``term``, then ``over``."""

    name: str
    term: str
    over: str


@dataclass(frozen=True)
class Sweep:
    """One pass over a row: what it loads, makes, averages and stores.

    ``scalars`` are the lines that follow from its means, ``published`` values stored
    here and read back by a later sweep.
    """

    elements: tuple[str, ...]
    columns: tuple[str, ...]
    lines: tuple[str, ...]
    made: frozenset[str]
    means: tuple[Mean, ...] = ()
    scalars: tuple[str, ...] = ()
    stores: tuple[Store, ...] = ()
    published: tuple[str, ...] = ()


@dataclass(frozen=True)
class Kernel:
    """What any kernel has.

    ``elements`` are the tensors it loads row by row, ``columns`` once a program;
    ``strided`` those whose rows may be any distance apart.  ``roundings`` are the
    dtypes that it is told by a constexpr.
    """

    name: str
    how: str
    grid: Grid
    prelude: tuple[str, ...]
    arguments: tuple[Argument, ...]
    roundings: Mapping[str, Dtype]
    elements: tuple[str, ...]
    columns: tuple[str, ...]
    strided: tuple[str, ...]

    @property
    def read_per_row(self) -> tuple[str, ...]:
        """What is loaded as one number a row: statistics, and their gradients."""
        return ()

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
    spaces: Mapping[str, Space]
    grid: Grid
    tensor_dtypes: Mapping[str, Dtype]
    pointers: tuple[str, ...]
    roundings: dict[str, Dtype] = field(default_factory=dict)

    def sweep(
        self,
        targets: Iterable[str],
        given: Collection[str] = (),
        means: tuple[Reduction, ...] = (),
        scalars: Iterable[Line] = (),
        stores: tuple[Store, ...] = (),
        published: tuple[str, ...] = (),
    ) -> Sweep:
        """The sweep that makes ``targets`` and the terms of ``means``."""
        targets = set(targets).union(*(names(mean.term) for mean in means))
        lines = self.cut(targets, given)
        return Sweep(
            elements=self.loads(lines, targets, per_row=True),
            columns=self.loads(lines, targets, per_row=False),
            lines=self.texts(lines),
            made=frozenset(line.target for line in lines),
            means=tuple(map(self.mean, means)),
            scalars=self.texts(scalars),
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
        self, lines: Iterable[Line], uses: Iterable[str], per_row: bool
    ) -> tuple[str, ...]:
        """The tensors that ``lines`` and ``uses`` read, row by row or once."""
        lines = list(lines)
        read = set(uses).union(*(line.uses for line in lines))
        read -= {line.target for line in lines}
        return tuple(
            t for t, s in self.spaces.items() if s.per_row == per_row and t in read
        )

    def mean(self, reduction: Reduction) -> Mean:
        """A reduction as Triton."""
        term = reduction.term
        if reduction.columns is not None:
            term = f"where(cols < {reduction.columns}, {term}, 0.0)"
        over = reduction.over and substitute(reduction.over, {"N": self.grid.length})
        over = over if over.isidentifier() or over.isdigit() else f"({over})"
        return Mean(
            reduction.name, in_triton(term), f" / {over}" if reduction.over else ""
        )

    def texts(self, lines: Iterable[Line]) -> tuple[str, ...]:
        """Lines as Triton: rounded to their dtypes, and float32 again."""
        return tuple(text for line in lines for text in self._texts(line))

    def _texts(self, line: Line) -> tuple[str, ...]:
        length = self.grid.length
        sizes = {"N": length, "root_n": f"{length} ** 0.5"}
        formula = substitute(in_triton(line.formula), sizes)
        if line.dtype == FLOAT32:
            return (f"{line.target} = {formula}",)
        cast = f".to({self._dtype(line)}).to(tl.float32)"
        text = formula if is_primary(formula) else f"({formula})"
        text = f"{line.target} = {text}{cast}"
        if len(text) <= WIDTH - DEEPEST:
            return (text,)
        return (f"{line.target} = {formula}", f"{line.target} = {line.target}{cast}")

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
    grid: Grid,
) -> tuple[Argument, ...]:
    """An argument list in its order: tensors, strides, sizes, constexprs."""
    docs = {**DOCS, **grid.docs}
    made = [Argument(f"{name}_ptr", _said(name, doc)) for name, doc in tensors.items()]
    made += [Argument(f"{name}_row_stride", "", "tl.int64") for name in strided]
    made += [Argument(name, docs[name]) for name in dict.fromkeys(sizes)]
    for name in (*grid.constants, *roundings, "ALIGNMENT", *constants):
        made.append(
            Argument(name, docs.get(name) or _rounding_doc(name), "tl.constexpr")
        )
    return tuple(made)


def _said(name: str, doc: str) -> str:
    """What a tensor is, where its letter does not tell."""
    meaning = {o.name: o.argument for o in (SCALE, SHIFT, SCALE2, SHIFT2, BRANCH)}
    return f"{meaning[name]}, {doc}" if name in meaning else doc


def _rounding_doc(name: str) -> str:
    value = name.removesuffix("_DTYPE").lower()
    return f"the dtype of {value}, as torch promotes its operands"


DOCS = {
    "n_rows": "how many rows there are",
    "eps": "the epsilon",
    "HIDDEN_SIZE": "the row length",
    "ALIGNMENT": "16 where all pointers and rows are aligned to 16 bytes, else 1",
    "BLOCK_SIZE": "columns a program holds at once, a power of two",
    "ROWS_PER_PROGRAM": "rows a program holds at once, a power of two",
}
