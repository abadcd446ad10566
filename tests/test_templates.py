"""Templates read as Python with holes, and place what the plan decided."""

from __future__ import annotations

import ast
import functools
import re

import pytest
from jinja2 import Environment, nodes
from renderings import LLAMA, SPECS, every_norm, spec_of

from normgen import engine, header
from normgen.render import HELPERS, render_body
from normgen.spec import SpecFile
from normgen.strategies import STRATEGIES

TEMPLATES = {
    path.relative_to(engine.TEMPLATES).as_posix(): path.read_text(encoding="utf-8")
    for path in sorted(engine.TEMPLATES.rglob("*.jinja"))
}
KERNELS = {
    name: text
    for name, text in TEMPLATES.items()
    if name.split("/")[0] in ("forward", "backward") or "_sum_partials.py" in name
}
STRATEGY_TEMPLATES = {n: t for n, t in KERNELS.items() if not n.startswith("helpers")}

HOLE = re.compile(r"\{\{ (?P<fact>.+?) \}\}")
#: Holes that are no expression: signatures, and loops over the lines of one.
SIGNATURES = {"opening"}
SIGNATURE_LINES = re.compile(
    r"#: for line in \S+\.(\w*opening|forward|backward|launched_if)$"
)
#: Holes after a bracket that hold what follows from it: a division, or a cast.
NAMED = {
    "k.grid.program": "tl.program_id(0).to(tl.int64)",
    "k.grid.statistic_row": "row",
    "k.grid.row_size": "HIDDEN_SIZE",
    "total.stride": "HIDDEN_SIZE",
}
SUFFIX = re.compile(r"(?<=\))\{\{ (mean\.over|cast) \}\}")


def as_python(template: str) -> str:
    """A template with its control lines left out, and a name in every hole."""
    lines, control = [], ""
    for line in template.split("\n"):
        if line.lstrip().startswith("#:"):
            control = line.strip()
            continue
        line = SUFFIX.sub(".hole", line)
        for hole in HOLE.finditer(line):
            of_signature = hole["fact"] == "line" and SIGNATURE_LINES.match(control)
            is_signature = hole["fact"] in SIGNATURES or of_signature
            name = "def hole():" if is_signature else NAMED.get(hole["fact"], "hole")
            line = line.replace(hole[0], name)
        lines.append(line)
    return "\n".join(lines)


def syntax(template: str) -> nodes.Template:
    extension = engine.LineStatements
    return Environment(extensions=[extension]).parse(template)


@pytest.mark.parametrize("name", TEMPLATES)
def test_a_template_with_its_holes_filled_is_python(name: str) -> None:
    ast.parse(as_python(TEMPLATES[name]))


#: What a template may do: place facts, and repeat a line for each.
ALLOWED = (
    *(nodes.Template, nodes.Output, nodes.TemplateData, nodes.Name, nodes.Getattr),
    *(nodes.For, nodes.Macro, nodes.If, nodes.Getitem, nodes.Slice, nodes.Const),
    nodes.Tuple,  # of loop variables
)


@pytest.mark.parametrize("name", TEMPLATES)
def test_a_template_only_places_and_repeats(name: str) -> None:
    """No comparison, arithmetic, filter or test: no ``is defined``, no ``default``."""
    for node in syntax(TEMPLATES[name]).find_all(nodes.Node):
        assert isinstance(node, ALLOWED), node


@pytest.mark.parametrize(
    "text",
    [
        "{{ x | default('') }}",
        "#: if x is defined\n#: endif",
        "{{ x + 1 }}",
        "{{ 'a' if x else 'b' }}",
        "#: set x = 1",
        "#: if a == b\n#: endif",
    ],
)
def test_what_a_template_may_not_do_is_noticed(text: str) -> None:
    found = syntax(text).find_all(nodes.Node)
    assert any(not isinstance(node, ALLOWED) for node in found)


@pytest.mark.parametrize("name", TEMPLATES)
def test_a_template_has_at_most_two_conditions(name: str) -> None:
    assert len(list(syntax(TEMPLATES[name]).find_all(nodes.If))) <= 2


@pytest.mark.parametrize("name", TEMPLATES)
def test_a_line_is_either_generator_or_product(name: str) -> None:
    for line in TEMPLATES[name].split("\n"):
        assert "{%" not in line
        assert "{#" not in line
        assert line.startswith("#: ") or "#:" not in line
        assert not (line.startswith("#: ") and "{{" in line)


@pytest.mark.parametrize("name", TEMPLATES)
def test_a_template_is_ascii_and_ends_with_one_newline(name: str) -> None:
    text = TEMPLATES[name]
    assert text.isascii()
    assert text.endswith("\n")
    assert not text.endswith("\n\n")
    assert not re.search(r"[ \t]$", text, flags=re.MULTILINE)


@functools.cache
def users() -> dict[str, SpecFile]:
    """Template -> a spec that it is used for."""
    found: dict[str, SpecFile] = {}
    specs = [spec_of(path) for path in SPECS]
    specs += [SpecFile(version=1, kernels=(norm,)) for norm in every_norm().values()]
    for spec in specs:
        found = {**dict.fromkeys(render_body(spec).templates, spec), **found}
        if set(found) == set(TEMPLATES):
            break
    return found


def test_every_template_is_used() -> None:
    assert set(users()) == set(TEMPLATES)


def test_every_helper_and_strategy_has_its_template() -> None:
    helpers = {f"helpers/{name}.py.jinja" for name in HELPERS}
    assert helpers == {name for name in TEMPLATES if name.startswith("helpers/")}
    pairs = {
        strategy.template(direction)
        for strategy in STRATEGIES.values()
        for direction in strategy.how
    }
    assert pairs == set(STRATEGY_TEMPLATES)


#: Tensors and values of steps, by which a template would know one.
STEP_NAMES = {
    *("x", "w", "b", "r", "h", "y", "dx", "dy", "dw", "db", "dr", "dh", "gate"),
    *("weight", "bias", "residual", "x_hat", "dx_hat", "centered", "mean", "variance"),
    *("mean_square", "rstd", "projection", "scaled", "shifted", "rounded", "eps"),
    *("w2", "b2", "s", "t", "s2", "t2", "alpha", "dalpha", "factor", "y2", "dy2"),
    *("scale", "shift", "branch_scale", "clip", "std", "rms", "norm", "sum_square"),
}


@pytest.mark.parametrize("name", STRATEGY_TEMPLATES)
def test_a_strategy_knows_no_step(name: str) -> None:
    tree = ast.parse(as_python(TEMPLATES[name]))
    found = {node.id for node in ast.walk(tree) if isinstance(node, ast.Name)}
    stems = {re.sub(r"_(ptr|ptrs|row|row_stride)$", "", name) for name in found}
    assert not stems & STEP_NAMES


def calls(name: str, function: str) -> list[ast.Call]:
    tree = ast.parse(as_python(KERNELS[name]))
    found = (node for node in ast.walk(tree) if isinstance(node, ast.Call))
    return [call for call in found if ast.unparse(call.func) == function]


def keywords(call: ast.Call) -> dict[str, str]:
    return {word.arg: ast.unparse(word.value) for word in call.keywords}


@pytest.mark.parametrize("name", KERNELS)
def test_a_masked_load_says_what_lies_beyond_and_an_unmasked_one_is_of_a_row(name):
    for call in calls(name, "tl.load"):
        given = keywords(call)
        statistic = ast.unparse(call.args[0]) == "hole_ptr + row"
        if "mask" in given:
            # a row that is not there is divided by 1
            beyond = "1.0" if statistic else "0.0"
            assert given.get("other") == beyond, ast.unparse(call)
        else:
            assert statistic
            assert name.split("/")[-1] not in ("rows.py.jinja", "channel.py.jinja")


@pytest.mark.parametrize("name", KERNELS)
def test_a_store_of_more_than_one_value_is_masked(name: str) -> None:
    for call in calls(name, "tl.store"):
        scalar = ast.unparse(call.args[0]) == "hole_ptr + row"
        assert scalar or "mask" in keywords(call), ast.unparse(call)
        if "rows.py" in name or "channel.py" in name:
            assert "mask" in keywords(call)


@pytest.mark.parametrize("name", KERNELS)
def test_every_sum_says_along_which_axis(name: str) -> None:
    for call in calls(name, "tl.sum"):
        assert "axis" in keywords(call), ast.unparse(call)


def wide(node: ast.AST, known: set[str]) -> bool:
    """Whether an expression is int64: cast, or made of something that is."""
    if isinstance(node, ast.Call) and ast.unparse(node.func).endswith(".to"):
        return ast.unparse(node.args[0]) == "tl.int64"
    if isinstance(node, ast.Call) and ast.unparse(node.func) == "range":
        return wide(node.args[0], known)
    if isinstance(node, ast.BinOp):
        return wide(node.left, known) or wide(node.right, known)
    return isinstance(node, ast.Name) and node.id in known


@pytest.mark.parametrize("name", KERNELS)
def test_every_offset_of_a_row_is_int64(name: str) -> None:
    """What is multiplied by a stride, or by a row's length, was cast before."""
    known: set[str] = set()
    offsets = 0
    for node in ast.walk(ast.parse(as_python(KERNELS[name]))):
        if isinstance(node, ast.Assign) and wide(node.value, known):
            known |= {ast.unparse(target) for target in node.targets}
        if isinstance(node, ast.For) and wide(node.iter, known):
            known.add(ast.unparse(node.target))
    for node in ast.walk(ast.parse(as_python(KERNELS[name]))):
        if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Mult):
            if ast.unparse(node.right) in ("HIDDEN_SIZE", "hole_row_stride"):
                assert wide(node.left, known), ast.unparse(node)
                offsets += 1
            if "n_rows" in ast.unparse(node.right):  # from one plane to the next
                assert wide(node.right, known) or "MULTIPLE" in ast.unparse(node)
                offsets += 1
            assert ast.unparse(node.left) not in ("HIDDEN_SIZE", "hole_row_stride")
    assert offsets


@pytest.mark.parametrize("name", TEMPLATES)
def test_a_change_of_a_template_changes_the_hash_of_what_it_renders(name, monkeypatch):
    spec = users()[name]
    before = header.template_digest(render_body(spec).templates)
    source = engine.source
    monkeypatch.setattr(
        engine, "source", lambda asked: source(asked) + ("\n" if asked == name else "")
    )
    assert header.template_digest(render_body(spec).templates) != before


def test_the_hash_sees_no_template_that_is_not_used(monkeypatch) -> None:
    spec = spec_of(LLAMA)
    used = render_body(spec).templates
    before = header.template_digest(used)
    source = engine.source
    monkeypatch.setattr(
        engine, "source", lambda asked: source(asked) if asked in used else "changed"
    )
    assert set(used) < set(TEMPLATES)
    assert header.template_digest(render_body(spec).templates) == before


def test_a_fact_that_is_missing_is_an_error() -> None:
    from jinja2 import UndefinedError

    with pytest.raises(UndefinedError):
        engine.Renderer().render("host/forward.py.jinja", n={})


def test_blank_lines_after_a_control_line_are_kept() -> None:
    name = "backward/row.py.jinja"
    assert "#: endfor\n\n    for row" in TEMPLATES[name]
    text = engine.Renderer().render(name, opening="", k=_Anything())
    assert re.search(r"\n\n    for row", text)
    assert "#:" not in text


class _Anything(str):
    """Every fact of it is an empty list, or an empty text."""

    def __getattr__(self, name: str) -> _Anything:
        return _Anything()


@pytest.mark.parametrize(
    "text, tidied",
    [
        ("a  \nb", "a\nb\n"),
        ("a\n\n\n    b", "a\n\n    b\n"),
        ("a\n\n\n\n\nb", "a\n\n\nb\n"),
        ("\n\na\n\n\n", "a\n"),
    ],
)
def test_runs_of_blank_lines_are_tidied(text: str, tidied: str) -> None:
    assert engine.tidy(text) == tidied
