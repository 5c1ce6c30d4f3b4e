"""The arguments, their tests and what is said of them: the same set, and none skipped."""
import ast
import json
import pathlib
import subprocess
import sys

import pytest

from conftest import HERE, WITHOUT_BIN, support

ARGS_DOC = support.BINARY_DIR / "tools" / "tandem-args-doc"


@pytest.fixture(scope="module")
def arguments():
    done = subprocess.run([str(ARGS_DOC), "--list"], capture_output=True, text=True, check=True, timeout=60)
    return json.loads(done.stdout)


def written_tests():
    """{name of a test: its node}, of every test_effects_*.py."""
    found = {}
    for path in sorted(HERE.glob("test_effects_*.py")):
        for node in ast.parse(path.read_text()).body:
            if isinstance(node, ast.FunctionDef) and node.name.startswith("test_"):
                assert node.name not in found, f"{node.name} twice"
                found[node.name] = node
    return found


def test_each_argument_that_does_something_has_its_test(arguments):
    wanted = {entry["test"] for entry in arguments if entry["test"]}
    written = set(written_tests())
    assert wanted - written == set(), "no test sees the effect of these"
    assert written - wanted == set(), "tests of arguments that have no field"
    assert all(entry["test"] for entry in arguments if entry["status"] != "not built yet")


def test_no_effect_test_can_be_skipped_or_taken_out():
    """Decorators and calls of pytest are where that would be written; collection shows the rest."""
    for name, node in written_tests().items():
        assert not node.decorator_list, name
        called = {call.func.attr for call in ast.walk(node)
                  if isinstance(call, ast.Call) and isinstance(call.func, ast.Attribute)}
        assert not called & {"skip", "skipif", "xfail", "importorskip"}, name
        assert {argument.arg for argument in node.args.args} & {"cluster", "run"}, f"{name} runs no program"


def test_both_runs_of_every_test_are_collected():
    done = subprocess.run([sys.executable, "-m", "pytest", "--collect-only", "-q", "-p", "no:cacheprovider",
                           "--rootdir", str(HERE), *map(str, sorted(HERE.glob("test_effects_*.py")))],
                          capture_output=True, text=True, timeout=120, cwd=HERE)
    collected = {line.split("::")[1] for line in done.stdout.splitlines() if "::" in line}
    assert collected == {f"{name}[{run}]" for name in written_tests() for run in ("with", "without")}, done.stdout


def test_docs_name_the_tests(arguments):
    page = (pathlib.Path(support.ROOT) / "docs" / "arguments.md").read_text()
    for entry in arguments:
        line = next(line for line in page.splitlines() if line.startswith(f"| `--{entry['name']}`"))
        assert f"| {entry['status']}" in line and line.endswith(f"`{entry['test']}` |" if entry["test"] else "|  |")


@pytest.mark.parametrize("program", ["router", "prefill-server", "decode-server", "bootstrap-server"])
def test_the_programs_for_tests_work_and_the_installed_ones_have_no_such_variable(program):
    """Else "fails without the effect" could be a program that never works, or an installed one that can be told to."""
    def version(folder, without):
        done = subprocess.run([str(folder / program), "--version", "--dry-run"], capture_output=True, text=True, timeout=60,
                              env={"TANDEM_TEST_WITHOUT": without})
        return done.returncode, done.stdout
    good = version(support.BIN, "")
    assert good[0] == 0 and good[1].startswith(program)
    assert version(WITHOUT_BIN, "") == version(WITHOUT_BIN, "page-size") == good
    assert version(WITHOUT_BIN, "page-size,version") != good
    assert version(support.BIN, "version") == good
    assert b"TANDEM_TEST_WITHOUT" not in (support.BIN / program).read_bytes()
