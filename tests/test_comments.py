"""Every comment of a generated module is known here, and true wherever it stands."""

from __future__ import annotations

import ast
import re

import modules
import pytest
from modules import Comment
from renderings import texts

from normgen.fields import LARGEST_REGISTER_ROW
from normgen.launch import MAX_WARPS


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
    length = comment.text.split()[-1].rstrip(".")
    return following.endswith(f"= (cols < {length}) | ({length} % BLOCK_SIZE == 0)")


def described(comment: Comment) -> dict[str, str]:
    """The pointers of a kernel, by the shapes that its docstring tells."""
    head = comment.before.split("Args:\n")[1].split('"""')[0]
    whole = head.replace("\n            ", " ")
    return dict(re.findall(r"^ {8}(\w+_ptr): (.+?\])", whole, re.MULTILINE))


def moves(comment: Comment, index: str) -> dict[str, str]:
    """By how much each pointer is moved after a comment, up to an empty line or the
    next comment."""
    made = {}
    for line in comment.block[comment.line + 1 :]:
        if not line or line.lstrip().startswith("#"):
            break
        found = re.match(r" *(\w+_ptr) \+= (.+)", line)
        if found:
            made[found[1]] = found[2]
    return made if f"    {index} = tl.program_id(" in comment.after else {}


def rows_of_a_sample(text: str, comment: Comment) -> bool:
    """All that has samples is moved to that of the program, and nothing else."""
    moved = moves(comment, "sample")
    of_samples = {n for n, shape in described(comment).items() if "samples" in shape}
    return set(moved) == of_samples and all(
        step.startswith("sample * ") for step in moved.values()
    )


def columns_of_a_group(text: str, comment: Comment) -> bool:
    """What has a place for each head or group is moved to that of the program's; what
    all of them share is not."""
    unit = comment.text.split()[2]
    first = re.search(rf"    first_col = {unit} \* (\w+)\n", comment.after)
    if not first:
        return False
    steps = {}
    for name, shape in described(comment).items():
        if shape.endswith(f", {unit}s]"):
            steps[name] = unit
        elif f"{unit}s, samples, " in shape:
            steps[name] = "n_samples * first_col"
        elif not re.search(rf"\b{first[1]}\]", shape):
            steps[name] = "first_col"
    return moves(comment, unit) == steps


def last_read(text: str, comment: Comment) -> bool:
    """Of x, which may be what is overwritten, nothing is loaded after the store."""
    kernels = re.findall(r"(\w)_row = r_row  #(.+?)\n\n\n", text, re.DOTALL)
    return bool(kernels) and all(
        "tl.load(x_row" not in rest.split(f"tl.store({tensor}_row + cols", 1)[1]
        for tensor, rest in kernels
    )


def table_of_units(text: str, comment: Comment) -> bool:
    """Rows are heads or groups there, which kernels are told beside whole rows."""
    size = {"Head": "ROW_SIZE", "Group": "GROUP_SIZE"}[comment.text.split()[1]]
    of_kind = table_of_pairs if "programs" in comment.text else table_of_options
    return f"{size}: tl.constexpr" in text and of_kind(text, comment)


def planes_of_rows(text: str, comment: Comment) -> bool:
    """A column is n_rows further on, and the host makes planes of what it gives."""
    return (
        comment.block[comment.line + 1] == "    plane = cols * n_rows.to(tl.int64)"
        and "_row + plane, mask=mask" in comment.after
        and ", n_rows], contiguous" in comment.before
        and "_as_planes(x)" in text
    )


def multiple_of_planes(text: str, comment: Comment) -> bool:
    """ALIGNMENT is 16 only where 2 * n_rows is a multiple of 16, and nothing is lost
    of n_rows where it is 1."""
    multiple, product = comment.block[comment.line + 1 : comment.line + 3]
    given = {int(one) for one in re.findall(r"return (1) if bits % 16 else 16", text)}
    factor = {
        alignment: eval(multiple.split(" = ")[1], {"ALIGNMENT": alignment})
        for alignment in (1, 16)
    }
    return (
        factor == {1: 1, 16: 8}
        and product == "    n_rows = n_rows // MULTIPLE * MULTIPLE"
        and given == {1}
        and "bits = 2 * tensors[0].shape[1]" in text
        and re.search(r"alignment = _alignment\(\s*\w+_planes", text) is not None
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
    made = re.findall(r"= (\w+)\.new_empty\((\w+)\.shape[,)]", text)
    in_place, of_rows = "r_row  #" in text, "factor = x.new_empty((" in text
    return bool(made or in_place or of_rows) and all(a == b for a, b in made)


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
        re.search(
            r"for row in range\(program, n_rows, [\w.()]*programs", comment.before
        )
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


def adjacent_rows_of(values: int):
    """16 rows of any length; more as long as a tile has room for them."""

    def holds(text: str, comment: Comment) -> bool:
        return all(
            e["ROWS_PER_PROGRAM"] == max(16, values // e["BLOCK_SIZE"])
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
    """A table of its own, looked into for few rows, with tiles as small as they get."""
    name = comment.block[0].split(" = ")[0]
    least = 16 if "    plane = cols" in text else 2
    several = (e.get("ROWS_PER_PROGRAM", 1) for e in entries(comment).values())
    return (
        name.endswith("_FORWARD_FEW_ROWS")
        and f"table = {name}" in text
        and max(several) <= least
    )


def asked_for(text: str, comment: Comment) -> bool:
    """One strategy for all lengths, whatever they are."""
    return sum(line.startswith("    # ") for line in comment.block) == 1


def too_long(text: str, comment: Comment) -> bool:
    """Longer than the rows that stand in registers, and walked over in chunks."""
    half = LARGEST_REGISTER_ROW["row"] // 2  # of a norm with two means in series
    return all(n > half >= e["BLOCK_SIZE"] for n, e in entries(comment).items())


def kept_under_a_name(text: str, comment: Comment) -> bool:
    """Where patch puts the old norm, unpatch and a second patch find it."""
    name = comment.block[comment.line + 1].split(" = ")[0]
    put, got = f"vars(made)[{name}] = norm", f"norm = vars(module)[{name}]"
    return put in text and got in text


def first_alike(text: str, comment: Comment) -> bool:
    """Each class has its stand-ins in order, and the first that takes it is taken."""
    name, value = comment.block[comment.line + 1].split(" = ")
    looked = re.search(rf"in \w*{name}|{name}\[|{name}\.", text[text.index(value) :])
    return name == "_STAND_INS" and value == "{" and looked is not None


def shared_dictionaries(text: str, comment: Comment) -> bool:
    return comment.block[comment.line + 1] == "    vars(made).update(vars(norm))"


#: Comment, as a pattern -> what must hold of the module wherever it stands.
TRUE = {
    r"no triton here: every call takes its reference": no_triton,
    r"Triton would compile anew for values that are 1 or divisible by 16; not for "
    r"these\.": compiles_once,
    r"Always true, and dropped by the compiler, where BLOCK_SIZE divides "
    r"(HIDDEN|GROUP)_SIZE\.": mask_is_dropped,
    r"A sample is a batch of rows: pointers move to its first one\.": (
        rows_of_a_sample
    ),
    r"Each (head|group) is a row: pointers move to its first column\.": (
        columns_of_a_group
    ),
    r"A column begins a plane of n_rows values after the one before it\.": (
        planes_of_rows
    ),
    r"Of aligned planes, n_rows is a multiple of 8: the product tells the "
    r"compiler\.": multiple_of_planes,
    r"[hy] takes the place of r": takes_the_place,
    r"rows of results are adjacent, of 2 bytes or more": adjacent_rows,
    r"With TRITON_INTERPRET=1 set, jit makes kernels that run on the CPU\.": (
        interpreted
    ),
    r"Multiprocessors by device, as they are asked for; one in the interpreter\.": (
        counts_by_device
    ),
    r"\[ROWS_PER_PROGRAM, BLOCK_SIZE\]": shape_of_a_tile,
    r"read for the last time": last_read,
    r"(Head|Group) size: (launch options|\(programs a multiprocessor, launch "
    r"options\))\.": table_of_units,
    r"Row length: launch options\.": table_of_options,
    r"Row length: \(programs a multiprocessor, launch options\)\.": table_of_pairs,
    r"Up to this row length, else the last: launch options\.": table_up_to,
    r"Up to this row length, else the last: \(programs a multiprocessor, launch "
    r"options\)\.": table_up_to,
    r"products are rounded, then added": not_fused,
    r"create_graph=True": graph_wanted,
    r"narrow, so that few columns are shared by several programs too": narrow_blocks,
    r"narrow, so that short rows are shared by several programs too": narrow_blocks,
    r"Shared by all of the above\.": shared,
    r"all of h is written before any of it is read again": written_before_it_is_read,
    r"d(w2?|b2?|s2?|t2?|alpha) of this program, which starts from 0 with its first "
    r"row": sum_of_a_program,
    r"the sums are written before the next row reads them": sums_are_written,
    r"Short rows: several a program, until 4 warps have 16 values a thread\.": (
        several_rows(4)
    ),
    r"Short rows: several at a time, until 8 warps have 16 values a thread\.": (
        several_rows(8)
    ),
    r"Columns far apart, rows adjacent: 16 rows, or more up to 8192 values a tile\.": (
        adjacent_rows_of(8192)
    ),
    r"Columns far apart, rows adjacent: 16 rows, or more up to 4096 values a tile\.": (
        adjacent_rows_of(4096)
    ),
    r"The attribute under which a stand-in keeps the norm that it replaced\.": (
        kept_under_a_name
    ),
    r"Class that patch replaces: what may stand for it\. The first that is alike "
    r"does\.": first_alike,
    r"Parameters and hooks are in dictionaries, which the two share from here on\.": (
        shared_dictionaries
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
