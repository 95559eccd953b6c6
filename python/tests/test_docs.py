"""The examples in docstrings and the README, and the type stubs."""

import asyncio
import doctest
import inspect
import os
import re
import subprocess
import sys
from pathlib import Path

import shm_pool

HERE = Path(__file__).parent


def test_docstrings():
    runner = doctest.DocTestRunner()
    names = {name: getattr(shm_pool, name) for name in shm_pool.__all__} | {"asyncio": asyncio}
    for test in doctest.DocTestFinder().find(shm_pool, globs=names):
        runner.run(test)
    results = runner.summarize()
    assert results.failed == 0 and results.attempted > 50


def test_readme(python):
    """Its publisher and its receiver, as two processes."""
    _, publish, _, receive, _ = re.split(r"```python\n(.*?)```", (HERE.parent / "README.md").read_text(), flags=re.S)
    channel = f'"pytest-readme-{os.getpid()}"'
    receiver, publisher = (python(program.replace('"camera"', channel)) for program in (receive, publish))
    lines = receiver.process.stdout.read().splitlines()
    assert lines[-1].split() == ["99.0", "0"]
    assert receiver.end() == publisher.end() == 0


def test_every_public_item_has_docs():
    for name in shm_pool.__all__:
        item = getattr(shm_pool, name)
        if isinstance(item, type):
            methods = [(key, value) for key, value in vars(item).items() if not key.startswith("_") and callable(value)]
            assert item.__doc__, name
            assert [key for key, value in methods if not value.__doc__] == [], name


def test_stubs():
    # Python before 3.12 does not show the buffer protocol as a method.
    allowed = HERE / "stubtest.allow"
    command = [sys.executable, "-m", "mypy.stubtest", "shm_pool", "--allowlist", str(allowed), "--ignore-unused-allowlist"]
    subprocess.run(command, check=True)


def test_types_of_users():
    # numpy's types know other buffers than its own from Python 3.12 on.
    command = [sys.executable, "-m", "mypy", "--strict", "--python-version", "3.12", str(HERE / "typed.py")]
    subprocess.run(command, check=True)


def test_advice_names_what_exists():
    """The advice of errors, by the names of Python's interface."""
    source = (HERE.parent / "src" / "errors.rs").read_text()
    [words] = re.findall(r"fn words\(.*?\n}\n", source, flags=re.S)
    advice = re.findall(r'"([^"]*)"', words)
    assert [text for text in advice if "::" in text or "Builder" in text] == []
    options = re.findall(r"([A-Z]\w+)\((\w+)=\)", " ".join(advice))
    assert options
    for name, option in options:
        assert option in inspect.signature(getattr(shm_pool, name)).parameters, f"{name}({option}=)"
