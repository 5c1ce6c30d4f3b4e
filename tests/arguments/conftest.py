"""One test per argument that does something: test_<name with underscores>, in any test_effects_*.py of this folder.

Each runs twice. "with": on the programs as installed, where it must pass. "without": on the same programs with one
more object (without_effect.cc), where the argument counts as never given; there it must fail, by an assertion.
No argument may be skipped. test_conformance.py compares the tests with the arguments.
"""
import importlib.util
import os
import pathlib
import subprocess
import sys
import tempfile

import pytest

HERE = pathlib.Path(__file__).resolve().parent


def load_helpers():
    """The process helpers of tests/e2e, under a name of their own: both folders have a conftest.py."""
    spec = importlib.util.spec_from_file_location("cluster_support", HERE.parent / "e2e" / "conftest.py")
    module = importlib.util.module_from_spec(spec)
    sys.modules["cluster_support"] = module
    spec.loader.exec_module(module)
    return module


support = load_helpers()
WITHOUT_BIN = support.BINARY_DIR / "tests" / "bin"


class Effect:
    """Which programs a test gets, and with which variables."""

    def __init__(self, taken_from=None):
        self.bin = support.BIN if taken_from is None else WITHOUT_BIN
        self.env = {} if taken_from is None else {"TANDEM_TEST_WITHOUT": taken_from}


def pytest_generate_tests(metafunc):
    if metafunc.module.__name__.startswith("test_effects_"):
        metafunc.parametrize("effect", ["with", "without"], indirect=True)


@pytest.hookimpl(wrapper=True)
def pytest_pyfunc_call(pyfuncitem):
    effect = getattr(pyfuncitem, "callspec", None) and pyfuncitem.callspec.params.get("effect")
    if not effect:
        return (yield)
    try:
        result = yield
    except pytest.skip.Exception as skipped:
        raise AssertionError(f"an argument that works here may not be skipped: {skipped}") from None
    except AssertionError as error:
        if effect == "with":
            raise
        print(f"fails without the effect: {error}")  # pytest -rP shows it
        return True
    if effect == "without":
        raise AssertionError("this test does not see whether the argument has its effect: it passes without")
    return result


@pytest.fixture
def effect(request):
    name = request.function.__name__.removeprefix("test_").replace("_", "-")
    return Effect(name if request.param == "without" else None)


def processes_in(folder):
    """Pids that work in this folder: the programs of one test and their children."""
    found = []
    for entry in pathlib.Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                state = (entry / "stat").read_text().rsplit(")", 1)[1].split()[0]
                if os.readlink(entry / "cwd") == str(folder) and state != "Z":
                    found.append(int(entry.name))
            except OSError:
                pass
    return found


@pytest.fixture
def cluster(effect):
    with tempfile.TemporaryDirectory(prefix="arguments-") as folder:
        group = support.Cluster(folder, effect.bin, effect.env)
        try:
            yield group
        finally:
            problems = group.stop()
        support.wait_for(lambda: not processes_in(pathlib.Path(folder).resolve()), 20, "every process is gone")
        assert not problems, "\n".join(problems)


@pytest.fixture
def run(effect):
    """run(program, *words) -> (exit code, stdout, stderr) of a program that ends by itself."""
    def run_program(program, *words, env=None):
        done = subprocess.run([str(effect.bin / program), *map(str, words)], capture_output=True, text=True,
                              stdin=subprocess.DEVNULL, timeout=60 * support.SLOW,
                              env={**os.environ, **effect.env, **(env or {})})
        assert done.returncode >= 0, f"ended by signal {-done.returncode}"
        return done.returncode, done.stdout, done.stderr
    return run_program
