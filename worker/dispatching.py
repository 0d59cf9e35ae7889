"""Write a candidate that picks its configuration by the sizes of its inputs: a kernel's winners for each workload.

    source ► the statements that depend on a tunable, once for each configuration (BLOCK ► BLOCK__0, BLOCK__1, ...)
           ► ModelNew with a forward that looks its inputs' dtypes and sizes up; all others take the best overall

The file stands alone: its kernels are those of the source, built once for each configuration. What depends on a tunable
is found by name, so a source that hides its names (`globals()`, `eval`) or binds one of them again locally is refused.
The source is only parsed, never run, and the result is judged in full like any other candidate.
"""

from __future__ import annotations

import ast
import copy
from collections.abc import Iterator, Sequence

from search.configurations import Dispatch, Signature, key_of
from search.tunables import Space
from search.types import Params
from worker.renaming import Renamer, bound_in

HIDING = frozenset({"globals", "locals", "vars", "eval", "exec", "super", "__class__", "__name__"})
"""Names that make the others unknowable, or that mean something else in a copy."""

DECLARATIONS = frozenset({"TUNABLES", "CONSTRAINTS"})
MAX_VARIANTS = 8


class CannotDispatch(ValueError):
    """No dispatching source can be written for this kernel. The message says why."""


def dispatching_source(source: str, space: Space, dispatch: Dispatch) -> str:
    """The candidate's source. Raises CannotDispatch."""
    variants = _variants(dispatch)
    module = ast.parse(source)
    varying = _varying_names(module, frozenset(space.values))
    model = _model(module)
    forward = _forward(model, varying)
    lines: list[str] = []
    for statement in module.body:
        if statement is model:
            lines += _forwards(forward, varying, len(variants))
            lines += _dispatcher(model, forward, dispatch, variants)
        elif _names_bound(statement) & DECLARATIONS:
            continue
        elif _names_bound(statement) & space.values.keys():
            lines += [_configured(statement, number, params) for number, params in enumerate(variants)]
        elif _depends(statement, varying):
            lines += [ast.unparse(_renamed(statement, varying, number)) for number in range(len(variants))]
        else:
            lines.append(_text(source, statement))
    return _with_torch(_spaced(lines), module)


def _spaced(parts: Sequence[str]) -> str:
    """The file, with two empty lines around functions and classes."""
    text = ""
    for part in parts:
        large = part.startswith(("def ", "class ", "@", "async "))
        text = f"{text.rstrip()}\n\n\n{part}\n\n\n" if large else f"{text}{part}\n"
    return text.rstrip() + "\n"


def _variants(dispatch: Dispatch) -> list[Params]:
    """The distinct configurations, the fallback first."""
    distinct: dict[str, Params] = {}
    for params in (dispatch.fallback, *dispatch.choices.values()):
        distinct.setdefault(key_of(params), params)
    if len(distinct) > MAX_VARIANTS:
        raise CannotDispatch(f"{len(distinct)} configurations are more than {MAX_VARIANTS}")
    return list(distinct.values())


def _varying_names(module: ast.Module, tunables: frozenset[str]) -> frozenset[str]:
    """The module's names that depend on a tunable, directly or through one another."""
    varying = set(tunables)
    grew = True
    while grew:
        grew = False
        for statement in module.body:
            bound = _names_bound(statement)
            if bound & DECLARATIONS or bound <= varying or "ModelNew" in bound:
                continue
            if _changes(statement, frozenset(varying)):
                varying |= bound
                grew = True
    return frozenset(varying)


def _model(module: ast.Module) -> ast.ClassDef:
    for statement in module.body:
        if isinstance(statement, ast.ClassDef) and statement.name == "ModelNew":
            return statement
    raise CannotDispatch("ModelNew is not a class of the module itself")


def _forward(model: ast.ClassDef, varying: frozenset[str]) -> ast.FunctionDef:
    """ModelNew's forward, where nothing else of the class depends on a tunable."""
    found = [part for part in model.body if isinstance(part, ast.FunctionDef) and part.name == "forward"]
    if len(found) != 1 or found[0].decorator_list:
        raise CannotDispatch("ModelNew has no plain forward of its own")
    others: list[ast.AST] = [*model.bases, *model.keywords, *model.decorator_list]
    others += [part for part in model.body if part is not found[0]]
    depending = sorted(set().union(*map(_names_read, others)) & varying) if others else []
    if depending:
        raise CannotDispatch(f"ModelNew depends on {depending[0]} outside its forward")
    given = found[0].args
    if given.vararg or given.kwarg or given.kwonlyargs or given.posonlyargs or len(given.args) < 2:
        raise CannotDispatch("forward takes more than plain arguments")
    if any(isinstance(node, ast.Attribute) and _mangled(node.attr) for node in ast.walk(found[0])):
        raise CannotDispatch("forward uses a private name, which is another one outside its class")
    _check_copied(found[0], varying)
    return found[0]


def _mangled(name: str) -> bool:
    return name.startswith("__") and not name.endswith("__")


def _forwards(forward: ast.FunctionDef, varying: frozenset[str], count: int) -> Iterator[str]:
    """The old forward as a function of the module, once for each configuration."""
    for number in range(count):
        mine = _renamed(forward, varying, number)
        assert isinstance(mine, ast.FunctionDef)
        mine.name = f"_forward__{number}"
        yield ast.unparse(mine)


def _dispatcher(
    model: ast.ClassDef, forward: ast.FunctionDef, dispatch: Dispatch, variants: Sequence[Params]
) -> Iterator[str]:
    """The table and ModelNew with its new forward."""
    numbers = {key_of(params): number for number, params in enumerate(variants)}
    yield "_FORWARDS = {"
    for signature, params in dispatch.choices.items():
        yield f"    {_key(signature)}: _forward__{numbers[key_of(params)]},"
    yield "}"
    names = [argument.arg for argument in forward.args.args]
    owner, inputs = names[0], ", ".join(names[1:])
    given = f"({inputs},)"
    body = (
        f"_key = tuple((_t.dtype, *_t.shape) for _t in {given} if isinstance(_t, torch.Tensor))\n"
        f"return _FORWARDS.get(_key, _forward__0)({owner}, {inputs})"
    )
    mine = copy.deepcopy(model)
    for part in mine.body:
        if isinstance(part, ast.FunctionDef) and part.name == "forward":
            part.body = ast.parse(body).body
    yield ast.unparse(ast.fix_missing_locations(mine))


def _key(signature: Signature) -> str:
    tensors = [", ".join([f"torch.{dtype}", *map(str, sizes)]) + "," for dtype, *sizes in signature]
    return "(" + "".join(f"({tensor}), " for tensor in tensors).rstrip() + ")"


def _configured(statement: ast.stmt, number: int, params: Params) -> str:
    """The assignment of a tunable, its annotation too (Triton wants `BLOCK: tl.constexpr = 64`), with its value."""
    mine = copy.deepcopy(statement)
    assert isinstance(mine, ast.Assign | ast.AnnAssign)
    target = mine.targets[0] if isinstance(mine, ast.Assign) else mine.target
    assert isinstance(target, ast.Name)
    mine.value = ast.Constant(params[target.id])
    target.id = f"{target.id}__{number}"
    return ast.unparse(mine)


def _depends(statement: ast.stmt, varying: frozenset[str]) -> bool:
    """Whether the statement goes into the file once for each configuration. Raises CannotDispatch."""
    if not _changes(statement, varying):
        return False
    _check_copied(statement, varying)
    return True


def _changes(statement: ast.stmt, varying: frozenset[str]) -> bool:
    """Whether it is another statement for each configuration."""
    return ast.dump(_renamed(statement, varying, 0)) != ast.dump(statement)


def _check_copied(node: ast.AST, varying: frozenset[str]) -> None:
    """Raises CannotDispatch where names cannot be followed: hidden ones, and those that a scope shares with another."""
    hidden = sorted(_names_read(node) & HIDING)
    if hidden:
        raise CannotDispatch(f"{hidden[0]} hides which names are used")
    for inner in ast.walk(node):
        bound: set[str] = set()
        if isinstance(inner, ast.Global | ast.Nonlocal):
            bound = set(inner.names)
        elif isinstance(inner, ast.ClassDef):
            bound = bound_in(inner.body)
        elif isinstance(inner, ast.NamedExpr):
            bound = bound_in([inner])
        if bound & varying:
            raise CannotDispatch(f"{min(bound & varying)} is bound again inside")


def _renamed(statement: ast.stmt, varying: frozenset[str], number: int) -> ast.stmt:
    names = {name: f"{name}__{number}" for name in varying}
    renamed: ast.stmt = Renamer(names).visit(copy.deepcopy(statement))
    return renamed


def _names_read(node: ast.AST) -> set[str]:
    """Every name used anywhere below, locals too: one too many costs a copy, one too few a wrong kernel."""
    return {inner.id for inner in ast.walk(node) if isinstance(inner, ast.Name)}


def _names_bound(statement: ast.stmt) -> set[str]:
    """The names that a statement of the module binds there."""
    if isinstance(statement, ast.FunctionDef | ast.ClassDef | ast.AsyncFunctionDef):
        return {statement.name}
    if isinstance(statement, ast.Import | ast.ImportFrom):
        return {(alias.asname or alias.name).split(".")[0] for alias in statement.names}
    return {
        node.id for node in ast.walk(statement) if isinstance(node, ast.Name) and not isinstance(node.ctx, ast.Load)
    }


def _text(source: str, statement: ast.stmt) -> str:
    """The statement as it was written, decorators included."""
    first = min([statement.lineno, *(d.lineno for d in getattr(statement, "decorator_list", []))])
    assert statement.end_lineno is not None
    lines = source.splitlines()[first - 1 : statement.end_lineno]
    text = "\n".join(lines)
    try:
        alone = ast.dump(ast.parse(text)) == ast.dump(ast.Module([statement], []))
    except SyntaxError:
        alone = False
    return text if alone else ast.unparse(statement)  # several statements on a line


def _with_torch(written: str, module: ast.Module) -> str:
    """The table names dtypes as torch.float32, so `torch` must be imported under its name."""
    bound = set().union(*map(_names_bound, module.body))
    if "_FORWARDS" in bound:
        raise CannotDispatch("the source is a dispatching one already")
    if "torch" not in bound:
        raise CannotDispatch("torch is not imported under its own name")
    ast.parse(written)
    return written
