"""Copies the docstrings of the native module to its type stub, for editors.

    python stub_docs.py
"""

import ast
import inspect
import textwrap
from pathlib import Path

from shm_pool import _native

# Their methods are those of public classes.
BASES = ["_ReceivingEnd", "_SendingEnd"]
STUB = Path(__file__).parents[1] / "package" / "shm_pool" / "_native.pyi"


def documented(stub: str) -> str:
    """Returns the stub with the docstrings of the module."""
    lines = stub.splitlines()
    # The last first: lines before an edit keep their numbers.
    for node, doc in reversed(list(items(ast.parse(stub).body, _native))):
        indent = " " * (node.col_offset + 4)
        text = inspect.cleandoc(doc).replace("\\", "\\\\")
        end = "\n" if "\n" in text else ""
        new = textwrap.indent(f'"""{text}{end}"""', indent).splitlines()
        first = node.body[0]
        if ast.get_docstring(node) is not None:
            lines[first.lineno - 1 : first.end_lineno] = new
        elif isinstance(node, ast.ClassDef):
            decorators = getattr(first, "decorator_list", [])
            start = min([first.lineno, *(decorator.lineno for decorator in decorators)]) - 1
            lines[start:start] = new
        else:
            # The body is `...`, on the line of the colon.
            line = lines[first.lineno - 1]
            lines[first.lineno - 1 : first.lineno] = [line.removesuffix(" ..."), *new]
    return "\n".join(lines) + "\n"


def items(nodes, owner):
    """Yields the classes and functions that have docs, in the order of the stub."""
    for node in nodes:
        if not isinstance(node, (ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)):
            continue
        item = getattr(owner, node.name, None)
        # What begins with an underscore is not for users.
        if item is None or node.name.startswith("_") and node.name not in BASES:
            continue
        if item.__doc__:
            yield node, item.__doc__
        if isinstance(node, ast.ClassDef):
            yield from items(node.body, item)


if __name__ == "__main__":
    STUB.write_text(documented(STUB.read_text()))
