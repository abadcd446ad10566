"""Templates read as Python with holes, and place what the plan decided."""

from __future__ import annotations

import ast
import re

import pytest
from jinja2 import Environment, nodes
from renderings import SPECS, covering_norms, spec_of

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
    if name.split("/")[0] in ("forward", "backward") or "_sum_partials" in name
}
STRATEGY_TEMPLATES = {n: t for n, t in KERNELS.items() if not n.startswith("helpers")}

HOLE = re.compile(r"\{\{ (?P<fact>.+?) \}\}")
#: Holes that are no expression: signatures, and loops over the lines of one.
SIGNATURES = {"opening"}
SIGNATURE_LINES = re.compile(r"#: for line in \S+\.(\w*opening|forward|backward)$")


def as_python(template: str) -> str:
    """A template with its control lines left out, and a name in every hole."""
    lines, control = [], ""
    for line in template.split("\n"):
        if line.lstrip().startswith("#:"):
            control = line.strip()
            continue
        for hole in HOLE.finditer(line):
            of_signature = hole["fact"] == "line" and SIGNATURE_LINES.match(control)
            is_signature = hole["fact"] in SIGNATURES or of_signature
            line = line.replace(hole[0], "def hole():" if is_signature else "hole")
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


def test_every_template_is_used() -> None:
    used: set[str] = set()
    for path in SPECS:
        used |= set(render_body(spec_of(path)).templates)
    for norm in covering_norms().values():
        used |= set(render_body(SpecFile(version=1, kernels=(norm,))).templates)
    assert used == set(TEMPLATES)


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
        if "mask" in given:
            assert given.get("other") == "0.0", ast.unparse(call)
        else:
            assert ast.unparse(call.args[0]) == "hole_ptr + row"
            assert "rows" not in name.split("/")[-1]


@pytest.mark.parametrize("name", KERNELS)
def test_a_store_of_more_than_one_value_is_masked(name: str) -> None:
    for call in calls(name, "tl.store"):
        scalar = ast.unparse(call.args[0]) == "hole_ptr + row"
        assert scalar or "mask" in keywords(call), ast.unparse(call)
        if "rows.py" in name:
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
            assert ast.unparse(node.left) not in ("HIDDEN_SIZE", "hole_row_stride")
    assert offsets


@pytest.mark.parametrize("name", TEMPLATES)
def test_a_change_of_a_template_changes_the_hash_of_what_it_renders(name, monkeypatch):
    norm = next(
        norm
        for norm in covering_norms().values()
        if name in render_body(SpecFile(version=1, kernels=(norm,))).templates
    )
    spec = SpecFile(version=1, kernels=(norm,))
    before = header.template_digest(render_body(spec).templates)
    source = engine.source
    monkeypatch.setattr(
        engine, "source", lambda asked: source(asked) + ("\n" if asked == name else "")
    )
    assert header.template_digest(render_body(spec).templates) != before


def test_the_hash_sees_no_template_that_is_not_used(monkeypatch) -> None:
    spec = spec_of(SPECS[0])
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
