"""The shapes of a norm's tensors on the host: views of rows, their sizes, the grid."""

from __future__ import annotations

from dataclasses import dataclass

from normgen.grid import Grid
from normgen.kernels import Kernel
from normgen.layout import laid_out
from normgen.naming import VARIABLES
from normgen.plan import NormPlan
from normgen.spaces import COLUMN, ELEMENT, GROUP, HEAD, ROW, SAMPLE


@dataclass(frozen=True)
class Shapes:
    """What the host functions of one norm say of shapes, as expressions and lines."""

    plan: NormPlan
    grid: Grid

    @property
    def length(self) -> str:
        """The row length that a statistic is taken of."""
        group = self.plan.norm.group_size
        return "hidden_size" if group is None else str(group)

    def view(self, tensor: str) -> str:
        """What the view of a tensor is called that a kernel is given."""
        space = self.plan.space(tensor)
        return VARIABLES[tensor] + {
            ELEMENT: "_planes" if self.grid.channel else "_rows",
            SAMPLE: "_rows",
            ROW: "_values",
        }.get(space, "_row")

    def rows(self, variable: str) -> str:
        """The view of a tensor like x, given its variable."""
        return f"{variable}_planes" if self.grid.channel else f"{variable}_rows"

    def views(self, kernel: Kernel, first: str) -> tuple[str, ...]:
        """The lines that make every view, and name the sizes of ``first``."""
        lines = []
        per_row = [t for t in kernel.read_per_row if t in VARIABLES]
        for t in (*kernel.elements, *kernel.columns, *per_row):
            lines.append(f"{self.view(t)} = {self._made(t)}")
        if self.grid.channel:
            lines.append(f"n_samples, hidden_size = {first}.shape[:2]")
            lines.append(f"n_rows = {self.rows(first)}.shape[1]")
            return tuple(lines)
        row_size = "row_size" if self.grid.row_size == "ROW_SIZE" else "hidden_size"
        lines.append(f"n_rows, {row_size} = {self.rows(first)}.shape")
        if self.grid.samples:
            lines.append(f"n_samples = {first}.shape[0]")
        if self.grid.row_size == "ROW_SIZE":
            lines.append(f"n_groups, hidden_size = {first}.shape[-2:]")
        elif self.grid.groups:
            lines.append(f"n_groups = hidden_size // {self.length}")
        return tuple(lines)

    def _made(self, tensor: str) -> str:
        variable, space = VARIABLES[tensor], self.plan.space(tensor)
        if space == ROW:
            return f"{variable}.resolve_neg().reshape(-1).contiguous()"
        if space == ELEMENT and self.grid.channel:
            return f"_as_planes({variable})"
        flattened = {ELEMENT: ".flatten(-2)", HEAD: ".flatten()"}
        if self.grid.row_size == "ROW_SIZE":
            variable += flattened.get(space, "")
        return f"_as_rows({variable})"

    @property
    def is_empty(self) -> str:
        """Whether there is nothing to launch for."""
        return "n_rows * n_samples == 0" if self.grid.channel else "n_rows == 0"

    @property
    def is_filled(self) -> str:
        """The opposite of ``is_empty``."""
        return self.is_empty.replace("==", ">")

    @property
    def division(self) -> tuple[str, ...]:
        """From all rows to those of one sample."""
        divided = self.grid.samples and not self.grid.channel
        return ("n_rows //= n_samples",) if divided else ()

    @property
    def division_of_any(self) -> tuple[str, ...]:
        """The same where there may be no sample at all."""
        return ("n_rows //= max(1, n_samples)",) if self.division else ()

    @property
    def statistic(self) -> str:
        """The shape of a statistic."""
        if self.grid.channel:
            return "(x.shape[0], *x.shape[2:])"
        if self.grid.length == "GROUP_SIZE":
            return "(*x.shape[:-1], n_groups)"
        return "x.shape[:-1]"

    @property
    def factor(self) -> str:
        """The shape of a result that has one value a row."""
        if self.grid.channel:
            return "(x.shape[0], 1, *x.shape[2:])"
        return "(*x.shape[:-1], 1)"

    def alignment(self, kernel: Kernel) -> tuple[str, ...]:
        """The lines that find how the inputs of a kernel are aligned."""
        if self.grid.channel:
            views = [self.view(t) for t in kernel.elements]
        else:
            views = [self.view(t) for t in (*kernel.elements, *kernel.columns)]
        if self.grid.groups:
            views.insert(0, f"{views[0]}[:, :{self.length}]")
        return laid_out("alignment = _alignment(", views, ")", 4)

    @property
    def launch_grid(self) -> str:
        """The grid of a launch."""
        programs = "programs * n_samples" if self.grid.samples else "programs"
        return f"({programs}, n_groups)" if self.grid.groups else f"({programs},)"

    @property
    def shared(self) -> tuple[str, ...]:
        """The lines that share what is resident among samples and groups."""
        if not self.grid.shares:
            return ()
        count = " * ".join(self.grid.shares)
        return (f"resident = max(1, resident // max(1, {count}))",)

    def partials(self, first: str) -> str:
        """Memory for the partial sums of a gradient."""
        count = "programs * n_samples" if self.grid.samples else "programs"
        if self.grid.channel:
            return f"{first}.new_empty(({count}, hidden_size), dtype=torch.float32)"
        return f"_new_partials({self.rows(first)}, {count})"

    def constants(self) -> list[str]:
        """The keyword arguments of a launch that say the sizes of a row."""
        if self.grid.length == "GROUP_SIZE":
            return ["HIDDEN_SIZE=hidden_size", f"GROUP_SIZE={self.length}"]
        if self.grid.row_size == "ROW_SIZE":
            return ["ROW_SIZE=row_size", "HIDDEN_SIZE=hidden_size"]
        return ["HIDDEN_SIZE=hidden_size"]

    def summed(self, gradient: str, tensor: str, dtype: str, first: str) -> list[str]:
        """The lines that add up the partial sums of a gradient of ``tensor``."""
        name, space = VARIABLES[gradient], self.plan.space(tensor)
        if space == COLUMN and not self.grid.heads:
            return [f"{name} = _sum_partials({name}_partial, {dtype})"]
        shape = {
            COLUMN: "torch.Size([hidden_size])",
            HEAD: f"{first}.shape[-2:]",
            GROUP: f"torch.Size([{self.length}])",
            SAMPLE: "torch.Size([n_samples, hidden_size])",
        }[space]
        call = f"{name} = _sum_partials_as("
        return list(laid_out(call, (f"{name}_partial", dtype, shape), ")", 8))


def shapes(plan: NormPlan) -> Shapes:
    """The shapes of a norm."""
    return Shapes(plan, plan.grid)
