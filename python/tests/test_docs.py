"""The examples in docstrings and the README, and the type stubs."""

import doctest
import enum
import inspect
import os
import re
import subprocess
import sys
import time
from pathlib import Path

import pytest

import shm_pool
from conftest import TIMEOUT
from stub_docs import STUB, documented

HERE = Path(__file__).parent
ROOT = HERE.parent
PYRIGHT = "pyright"


def test_docstrings():
    runner = doctest.DocTestRunner(optionflags=doctest.ELLIPSIS)
    finder = doctest.DocTestFinder()
    tests = finder.find(shm_pool, globs={})
    tests += finder.find(shm_pool.inspect, globs={})
    # It does not look at functions that are not written in Python.
    tests += finder.find(shm_pool.wait_any, "wait_any", globs={})
    for test in tests:
        runner.run(test)
    results = runner.summarize()
    assert results.failed == 0 and results.attempted > 50


def programs(file: str) -> list[str]:
    """The programs of a document."""
    return re.findall(r"```python\n(.*?)```", (ROOT / file).read_text(), flags=re.S)


def own_names(program: str) -> str:
    """The program with channels of this test run."""
    return re.sub(r'"(time|camera|(?:s\w+|recipes)/[\w{}]+)"', rf'"pytest-{os.getpid()}/\1"', program)


@pytest.fixture
def run(python):
    """Starts a program of the docs. It may have been killed: removes what it has left."""
    yield lambda program, *arguments: python(own_names(program), *arguments)
    shm_pool.Namespace().sweep()


def test_readme(run):
    """Its programs with numpy, as two processes."""
    _, _, publish, receive, _ = programs("README.md")
    receiver, publisher = run(receive), run(publish)
    lines = receiver.process.stdout.read().splitlines()
    assert lines[-1].split() == ["99.0", "0"]
    assert receiver.end() == publisher.end() == 0


def test_readme_has_the_examples():
    publisher, subscriber, *_ = programs("README.md")
    assert example("publisher").endswith(f'"""\n\n{publisher}')
    assert example("subscriber").endswith(f'"""\n\n{subscriber}')


def test_readme_inspects(python, provider, prefix):
    *_, program = programs("README.md")
    with shm_pool.Publisher(provider, "camera") as camera, shm_pool.Subscriber("camera", prefix):
        camera.send(bytes(1000))
        child = python(program)
        output = child.process.stdout.read()
    assert child.end() == 0
    assert f"{provider.id} alive" in output and "1 wait 1 borrowed" in output


def example(name: str) -> str:
    return (ROOT / "examples" / f"{name}.py").read_text()


@pytest.mark.parametrize("first", ["publisher", "subscriber"])
def test_examples(first, run):
    """Publisher and subscriber are started in any order, killed, and started again."""

    def start(name):
        started = run(example(name).replace("time.sleep(1)", "time.sleep(0.001)"))
        if name == "publisher":
            started.line()
        return started

    def receive():
        size, _, _, seconds = subscriber.line().split()
        assert size == "1048576" and abs(int(seconds) - time.time()) < TIMEOUT

    if first == "publisher":
        publisher, subscriber = start("publisher"), start("subscriber")
    else:
        subscriber, publisher = start("subscriber"), start("publisher")
    receive()
    publisher.kill()
    publisher = start("publisher")
    while publisher.line() != "sent to 1 subscribers":
        pass
    # What came before the kill, and what came after it.
    for _ in range(1000):
        receive()
    subscriber.kill()
    subscriber = start("subscriber")
    receive()
    publisher.kill()


def test_many_producers(run):
    producer, consumer, _, _ = programs("docs/patterns.md")
    consuming = run(consumer)
    producing = [run(producer, name) for name in ("left", "right")]
    lines = [line.split()[1:] for line in consuming.process.stdout.read().splitlines()]
    for name in "left", "right":
        assert [number for of, number in lines if of == name] == [str(number) for number in range(10)]
    assert [child.end() for child in [consuming, *producing]] == [0, 0, 0]


@pytest.mark.parametrize("first", ["server", "client"])
def test_request_and_response(first, run):
    _, _, server, client = programs("docs/patterns.md")
    if first == "server":
        serving, asking = run(server), run(client)
    else:
        asking, serving = run(client), run(server)
    assert asking.process.stdout.read().split() == ["0", "0", "1", "1000", "2", "2000"]
    assert serving.end() == asking.end() == 0


@pytest.fixture
def run_file(start, tmp_path):
    """Starts a program of the docs from a file, as a spawned process needs."""

    def run(program, *arguments):
        path = tmp_path / "program.py"
        path.write_text(own_names(program))
        return start(sys.executable, str(path), *arguments)

    yield run
    shm_pool.Namespace().sweep()


RECIPES = "docs/recipes.md"


@pytest.mark.parametrize("method", ["spawn", "fork"])
def test_multiprocessing(method, run_file):
    program, *_ = programs(RECIPES)
    child = run_file(program, method)
    # A number and its end of line may be two writes, and two processes write them.
    digits = child.process.stdout.read().replace("\n", "")
    assert sorted(digits) == sorted(2 * "0123456789")
    assert child.end() == 0


def test_asyncio(run):
    _, program, *_ = programs(RECIPES)
    child = run(program)
    lines = [line.split("/")[-1] for line in child.process.stdout.read().splitlines()]
    for side in "left", "right":
        assert [line for line in lines if line.startswith(side)] == [f"{side} {number}" for number in range(3)]
    assert child.end() == 0


def test_opencv(run):
    pytest.importorskip("cv2")
    _, _, publisher, subscriber, *_ = programs(RECIPES)
    receiving, sending = run(subscriber), run(publisher)
    assert receiving.process.stdout.read().split() == [f"{number}.0" for number in range(10)]
    assert receiving.end() == sending.end() == 0


def test_dlpack(run):
    child = run(programs(RECIPES)[4])
    assert child.process.stdout.read().split() == ["500.0", "False"]
    assert child.end() == 0


def test_jupyter(run):
    """Its cells, run twice in one process, as a notebook does."""
    opening, sending = programs(RECIPES)[5:]
    child = run(f"""
cells = {opening!r}, {sending!r}
for _ in range(2):
    for cell in cells:
        exec(cell)
    assert frame.tolist() == [7] * 480 * 640
print("done")
shm_pool.finalize()
""")
    assert child.line() == "done"
    assert child.end() == 0


def test_every_public_item_has_docs():
    for name in shm_pool.__all__:
        item = getattr(shm_pool, name)
        if isinstance(item, type):
            methods = [(key, value) for key, value in vars(item).items() if not key.startswith("_") and callable(value)]
            assert item.__doc__, name
            if not issubclass(item, enum.Enum):
                assert [key for key, value in methods if not value.__doc__] == [], name


def test_stub_has_docs():
    stub = STUB.read_text()
    assert documented(stub) == stub, "python tests/stub_docs.py updates them"


def test_stubs():
    allowed = HERE / "stubtest.allow"
    command = [sys.executable, "-m", "mypy.stubtest", "shm_pool", "--allowlist", str(allowed), "--ignore-unused-allowlist"]
    subprocess.run(command, check=True)


@pytest.fixture(scope="module")
def typed(tmp_path_factory):
    """What a type checker accepts: the tests' program, the examples and the programs of the docs."""
    folder = tmp_path_factory.mktemp("typed")
    for document in "README.md", "docs/patterns.md", RECIPES:
        for number, program in enumerate(programs(document)):
            # OpenCV need not be installed, and the last cell of a notebook has names of the one before.
            if "import cv2" in program or "import" not in program:
                continue
            (folder / f"{Path(document).stem}_{number}.py").write_text(program)
    return [str(HERE / "typed.py"), *map(str, (ROOT / "examples").glob("*er.py")), *map(str, folder.iterdir())]


VERSIONS = ["3.10", "3.11", "3.12", "3.13"]


@pytest.mark.parametrize("version", VERSIONS)
def test_types_by_mypy(version, typed):
    # Each is a program of its own.
    command = [sys.executable, "-m", "mypy", "--strict", "--scripts-are-modules", "--python-version", version]
    subprocess.run([*command, *typed], check=True)


@pytest.mark.parametrize("version", VERSIONS)
def test_types_by_pyright(version, typed):
    checker = Path(sys.executable).with_name(PYRIGHT)
    command = [checker, "--pythonversion", version, "--pythonpath", sys.executable, "--level", "error"]
    subprocess.run([*command, *typed], check=True)


def test_stubs_by_pyright():
    checker = Path(sys.executable).with_name(PYRIGHT)
    package = Path(shm_pool.__file__).parent
    subprocess.run([checker, "--pythonpath", sys.executable, "--level", "error", package], check=True)


def test_advice_names_what_exists():
    """The advice of errors, by the names of Python's interface."""
    source = (ROOT / "src" / "errors.rs").read_text()
    [words] = re.findall(r"fn words\(.*?\n}\n", source, flags=re.S)
    advice = re.findall(r'"([^"]*)"', words)
    assert [text for text in advice if "::" in text or "Builder" in text] == []
    options = re.findall(r"([A-Z]\w+)\((\w+)=\)", " ".join(advice))
    assert options
    for name, option in options:
        assert option in inspect.signature(getattr(shm_pool, name)).parameters, f"{name}({option}=)"
