"""Every comment of a generated module is known here, and true wherever it stands."""

from __future__ import annotations

import ast
import re

import modules
import pytest
from modules import Comment
from renderings import texts

from normgen.launch import MAX_WARPS
from normgen.spec import LARGEST_REGISTER_ROW


def parses(text: str) -> bool:
    """What does not fails in test_generated, and need not hide all else here."""
    try:
        ast.parse(text)
    except SyntaxError:
        return False
    return True


TEXTS = {name: text for name, text in texts().items() if parses(text)}
COMMENTS = {name: list(modules.comments(text)) for name, text in TEXTS.items()}


def no_triton(text: str, comment: Comment) -> bool:
    """Every public function asks first whether it takes its reference."""
    public = re.findall(r"^def ([a-z]\w*)\(", text, re.MULTILINE)
    functions = [name for name in public if f"{name}_reference" in public]
    asks = 'return x.device.type == "meta" or not _HAS_TRITON' in text
    return asks and text.count("    if _takes_reference(x):") == len(functions)


def compiles_once(text: str, comment: Comment) -> bool:
    """The list holds all arguments of all kernels but constexprs."""
    tree = ast.parse(text)
    listed = next(
        ast.literal_eval(node.value)
        for node in tree.body
        if isinstance(node, ast.Assign)
        and ast.unparse(node.targets[0]) == "_RUNTIME_ARGUMENTS"
    )
    arguments = {
        argument.arg
        for kernel in modules.kernels(tree)
        for argument in modules.parameters(kernel)
        if not modules.is_constexpr(argument)
    }
    decorators = text.count("@triton.jit(do_not_specialize=_RUNTIME_ARGUMENTS)")
    return sorted(listed) == sorted(arguments) and decorators == len(
        modules.kernels(tree)
    )


def mask_is_dropped(text: str, comment: Comment) -> bool:
    following = comment.block[comment.line + 1]
    return following.endswith(
        "= (cols < HIDDEN_SIZE) | (HIDDEN_SIZE % BLOCK_SIZE == 0)"
    )


def takes_the_place(text: str, comment: Comment) -> bool:
    """The kernel has no such output; it is stored through the row of r."""
    tensor = comment.text.split()[1]
    kernel = "\n".join(comment.block)
    return (
        f"{tensor}_row = r_row" in comment.block[comment.line]
        and f"{tensor}_ptr" not in kernel
        and f"tl.store({tensor}_row + cols, " in comment.after
        and "_check_in_place(" in text
    )


def adjacent_rows(text: str, comment: Comment) -> bool:
    """Results are allocated contiguous, and the kernels address them so."""
    made = re.findall(r"= (\w+)\.new_empty\((\w+)\.shape", text)
    return bool(made or "r_row  #" in text) and all(one == other for one, other in made)


def interpreted(text: str, comment: Comment) -> bool:
    return comment.block[comment.line + 1].startswith("_INTERPRETED = not isinstance(")


def counts_by_device(text: str, comment: Comment) -> bool:
    name, value = comment.block[comment.line + 1].split(" = ")
    asked = f"{name}[device] = " in text and f"if device not in {name}:" in text
    return asked and value == '{torch.device("cpu"): 1}'


def shape_of_a_tile(text: str, comment: Comment) -> bool:
    line = comment.block[comment.line]
    return (
        "mask = row_mask & col_mask" in line
        and "arange(0, ROWS_PER_PROGRAM)[:, None]" in comment.before
        and "arange(0, BLOCK_SIZE)[None, :]" in comment.before
    )


def written_before_it_is_read(text: str, comment: Comment) -> bool:
    """A barrier between the stores and the loads of one tensor, outside of loops."""
    tensor = comment.text.split()[3]
    store, load = f"tl.store({tensor}_row + cols", f"tl.load({tensor}_row + cols"
    return (
        comment.block[comment.line].startswith("    tl.debug_barrier()")
        and store in comment.before
        and load not in comment.before
        and load in comment.after
        and store not in comment.after
    )


def sum_of_a_program(text: str, comment: Comment) -> bool:
    gradient = comment.text.split()[1]
    return (
        "for row in range(program, n_rows, tl.num_programs(0)):" in comment.before
        and f"{gradient} = tl.where(row > program, {gradient}, 0.0)" in comment.after
        and f"tl.store({gradient}_ptrs, {gradient}, mask=mask)" in comment.after
    )


def sums_are_written(text: str, comment: Comment) -> bool:
    """A barrier at the end of each row, where a sum is stored and read again."""
    return (
        comment.block[comment.line].startswith("        tl.debug_barrier()")
        and comment.line == len(comment.block) - 1
        and bool(re.search(r"(\w+) = tl\.load\(\1_ptrs, mask=mask", comment.before))
        and bool(re.search(r"tl\.store\((\w+)_ptrs, \1, mask=mask\)", comment.before))
    )


def entries(comment: Comment) -> dict[int, dict[str, int]]:
    """The entries of a launch table below a comment, up to the next one."""
    lines = []
    for line in comment.block[comment.line + 1 :]:
        if line.lstrip().startswith(("#", "}")):
            break
        lines.append(line)
    found = ast.literal_eval("{" + "\n".join(lines) + "}")
    return {n: e[1] if isinstance(e, tuple) else e for n, e in found.items()}


def tile(options: dict[str, int]) -> int:
    return options["BLOCK_SIZE"] * options.get("ROWS_PER_PROGRAM", 1)


def per_thread(options: dict[str, int]) -> float:
    return tile(options) / (32 * options["num_warps"])


def several_rows(warps: int):
    def holds(text: str, comment: Comment) -> bool:
        return all(
            e["ROWS_PER_PROGRAM"] > 1
            and e["num_warps"] == warps
            and per_thread(e) == 16
            for e in entries(comment).values()
        )

    return holds


def row_of_32_values(text: str, comment: Comment) -> bool:
    return all(per_thread(e) == 32 for e in entries(comment).values())


def all_warps(text: str, comment: Comment) -> bool:
    return all(
        per_thread(e) == 16 or e["num_warps"] == MAX_WARPS
        for e in entries(comment).values()
    )


def table_up_to(text: str, comment: Comment) -> bool:
    """Found by the next power of two, and a kind of table as without ``up to``."""
    name = comment.block[comment.line + 1].split(" = ")[0]
    of_kind = table_of_pairs if "programs" in comment.text else table_of_options
    rounded = "triton.next_power_of_2(hidden_size)" in text
    return rounded and f"{name}[hidden_size]" not in text and of_kind(text, comment)


def table_of_options(text: str, comment: Comment) -> bool:
    return "_FORWARD" in comment.block[comment.line + 1]


def table_of_pairs(text: str, comment: Comment) -> bool:
    name = comment.block[comment.line + 1].split(" = ")[0]
    read = f"per_multiprocessor, options = {name}["
    return name.endswith("_BACKWARD") and read in text


def not_fused(text: str, comment: Comment) -> bool:
    return "enable_fp_fusion=False," in comment.block[comment.line]


def graph_wanted(text: str, comment: Comment) -> bool:
    """In backward, autograd is on where its graph was asked for, and there alone."""
    return "if torch.is_grad_enabled():" in comment.block[comment.line] and (
        "_OnceDifferentiable.apply(" in comment.after
    )


def narrow_blocks(text: str, comment: Comment) -> bool:
    return "block_size = 64" in comment.block[comment.line]


def shared(text: str, comment: Comment) -> bool:
    """Only private helpers follow."""
    rest = text[text.index(comment.text) :]
    made = re.findall(r"^(?:def|class) (\w)", rest, flags=re.MULTILINE)
    return set(made) == {"_"}


def few_rows(text: str, comment: Comment) -> bool:
    """A table of its own, looked into for few rows, with tiles of at most two rows."""
    name = comment.block[0].split(" = ")[0]
    several = (e.get("ROWS_PER_PROGRAM", 1) for e in entries(comment).values())
    return (
        name.endswith("_FORWARD_FEW_ROWS")
        and f"table = {name}" in text
        and max(several) <= 2
    )


def asked_for(text: str, comment: Comment) -> bool:
    """One strategy for all lengths, whatever they are."""
    return sum(line.startswith("    # ") for line in comment.block) == 1


def too_long(text: str, comment: Comment) -> bool:
    """Longer than the rows that stand in registers, and walked over in chunks."""
    half = LARGEST_REGISTER_ROW["row"] // 2  # of a norm with two means in series
    return all(n > half >= e["BLOCK_SIZE"] for n, e in entries(comment).items())


#: Comment, as a pattern -> what must hold of the module wherever it stands.
TRUE = {
    r"no triton here: every call takes its reference": no_triton,
    r"Triton would compile anew for values that are 1 or divisible by 16; not for "
    r"these\.": compiles_once,
    r"Always true, and dropped by the compiler, where BLOCK_SIZE divides "
    r"HIDDEN_SIZE\.": mask_is_dropped,
    r"[hy] takes the place of r": takes_the_place,
    r"rows of results are adjacent, of 2 bytes or more": adjacent_rows,
    r"With TRITON_INTERPRET=1 set, jit makes kernels that run on the CPU\.": (
        interpreted
    ),
    r"Multiprocessors by device, as they are asked for; one in the interpreter\.": (
        counts_by_device
    ),
    r"\[ROWS_PER_PROGRAM, BLOCK_SIZE\]": shape_of_a_tile,
    r"Row length: launch options\.": table_of_options,
    r"Row length: \(programs a multiprocessor, launch options\)\.": table_of_pairs,
    r"Up to this row length, else the last: launch options\.": table_up_to,
    r"Up to this row length, else the last: \(programs a multiprocessor, launch "
    r"options\)\.": table_up_to,
    r"products are rounded, then added": not_fused,
    r"create_graph=True": graph_wanted,
    r"narrow, so that short rows are shared by several programs too": narrow_blocks,
    r"Shared by all of the above\.": shared,
    r"all of h is written before any of it is read again": written_before_it_is_read,
    r"d[wb] of this program, which starts from 0 with its first row": sum_of_a_program,
    r"the sums are written before the next row reads them": sums_are_written,
    r"Short rows: several a program, until 4 warps have 16 values a thread\.": (
        several_rows(4)
    ),
    r"Short rows: several at a time, until 8 warps have 16 values a thread\.": (
        several_rows(8)
    ),
    r"A row in registers, 32 values a thread: few warps reduce sooner\.": (
        row_of_32_values
    ),
    r"A row and its sums in registers: 16 values a thread, or 16 warps\.": all_warps,
    r"Few rows: small tiles, and twice the warps for their values\.": few_rows,
    r"The spec asks for this strategy\.": asked_for,
    r"A row too long for registers: in chunks, read again from the cache\.": too_long,
}


def of_pattern(pattern: str):
    """(name of the rendering, its text, comment) wherever the comment stands."""
    for name, text in TEXTS.items():
        for comment in COMMENTS[name]:
            if re.fullmatch(f"# {pattern}", comment.text):
                yield name, text, comment


def test_every_comment_is_known() -> None:
    for name, found in COMMENTS.items():
        for comment in found:
            known = [p for p in TRUE if re.fullmatch(f"# {p}", comment.text)]
            assert len(known) == 1, (name, comment.text)


@pytest.mark.parametrize("pattern", TRUE)
def test_a_comment_is_true_wherever_it_stands(pattern: str) -> None:
    found = list(of_pattern(pattern))
    assert found, "no rendering has this comment"
    false = [
        (name, comment.block[comment.line], comment.block[comment.line + 1 :][:2])
        for name, text, comment in found
        if not TRUE[pattern](text, comment)
    ]
    assert not false


BARRIER = "all of h is written before any of it is read again"


def test_a_comment_that_is_false_is_noticed() -> None:
    """Of two kernels with a barrier, each without what the barrier is for."""
    seen = 0
    for pattern, line in (
        (BARRIER, "        tl.store(h_row + cols"),
        (r"the sums are written before the next row reads them", "_ptrs, mask=mask"),
    ):
        for _, text, comment in of_pattern(pattern):
            block = tuple(x if line not in x else "" for x in comment.block)
            assert not TRUE[pattern](text, Comment(comment.text, block, comment.line))
            seen += 1
    assert seen > 10


def test_every_barrier_says_what_for() -> None:
    for text in TEXTS.values():
        for line in text.split("\n"):
            assert "debug_barrier" not in line or "  # " in line
