"""Source lines that rebuild what a factory builds, for a script that somebody else can run."""

from __future__ import annotations

import ast
import functools
import inspect
import sys
from collections.abc import Callable
from pathlib import Path
from types import CodeType, FunctionType, ModuleType
from typing import Any

__all__ = ["factory_source"]


def _import(value: Any, name: str) -> list[str]:
    """Lines that bring a module-level object into a script under `name`."""
    if isinstance(value, ModuleType):
        return [f"import {value.__name__}" if value.__name__ == name else f"import {value.__name__} as {name}"]
    module, qualname = getattr(value, "__module__", None), getattr(value, "__qualname__", None)
    if module is None or qualname is None or not qualname.isidentifier():
        return []
    if module == "builtins":
        return []
    renamed = f"{qualname} as {name}" if qualname != name else name
    return [*_path_to(module), f"from {module} import {renamed}"]


def _path_to(module: str) -> list[str]:
    """A line that makes a test module importable, where its folder is not on the path of a plain script."""
    file = getattr(sys.modules.get(module), "__file__", None)
    if file is None or "site-packages" in file or module.split(".")[0] in sys.stdlib_module_names:
        return []
    root = Path(file).resolve().parents[module.count(".")]
    if not root.is_relative_to(Path.cwd()):
        return []
    relative = root.relative_to(Path.cwd()).as_posix()
    return [f"import sys; sys.path.insert(0, {relative!r})  # from the project's root"]


def _lambda_source(function: FunctionType) -> str | None:
    """The source of a lambda alone, cut out of the statement that holds it."""
    try:
        lines = inspect.findsource(function)[0][function.__code__.co_firstlineno - 1 :]
    except (OSError, TypeError):
        return None
    indent = len(lines[0]) - len(lines[0].lstrip())
    lines = [line[indent:] for line in lines]
    # The statement ends somewhere below; the shortest prefix that parses is it.
    for end in range(1, min(len(lines), 30) + 1):
        try:
            tree = ast.parse("".join(lines[:end]))
        except SyntaxError:
            continue
        found = [node for node in ast.walk(tree) if isinstance(node, ast.Lambda)]
        same = [n for n in found if _same_code(ast.unparse(n), function.__code__)]
        return ast.unparse(same[0].body) if same else None
    return None


def _same_code(source: str, code: CodeType) -> bool:
    compiled = compile(source, "<factory>", "eval").co_consts
    return any(isinstance(c, CodeType) and c.co_names == code.co_names and c.co_consts == code.co_consts for c in compiled)


def factory_source(factory: Callable[[], Any]) -> list[str]:
    """Lines that define `build_scaler`, as faithful as introspection allows; a stub that says what to fill in otherwise."""
    stub = ["def build_scaler():", "    raise NotImplementedError('return the scaler that your factory returns')", ""]
    if isinstance(factory, functools.partial):
        arguments = [*map(repr, factory.args), *(f"{k}={v!r}" for k, v in factory.keywords.items())]
        name = getattr(factory.func, "__name__", "")
        lines = _import(factory.func, name)
        return [*lines, "", "def build_scaler():", f"    return {name}({', '.join(arguments)})", ""] if lines else stub
    if isinstance(factory, FunctionType) and factory.__name__ == "<lambda>":
        body = _lambda_source(factory)
        if body is None or factory.__code__.co_freevars:
            return stub
        names = [name for name in factory.__code__.co_names if name in factory.__globals__]
        imports = [_import(factory.__globals__[name], name) for name in names]
        if not all(imports):
            return stub
        flat = list(dict.fromkeys(line for lines in imports for line in lines))
        return [*flat, "", "def build_scaler():", f"    return {body}", ""]
    name = getattr(factory, "__name__", "")
    lines = _import(factory, name)
    return [*lines, "", "def build_scaler():", f"    return {name}()", ""] if lines else stub
