"""Arguments that print something about the arguments, and the one that makes programs fail for tests."""
import json

from cluster_support import greedy, http
from effects import PROGRAMS


def test_print_completion(run):
    for program in PROGRAMS:
        code, out, err = run(program, "--print-completion", "bash")
        assert (code, err) == (0, "") and f"complete -F _tandem_{program.replace('-', '_')} {program}" in out
        assert run(program, "--print-completion", "zsh")[1].startswith(f"#compdef {program}\n")


def test_print_man(run):
    for program in PROGRAMS:
        code, out, err = run(program, "--print-man")
        assert (code, err) == (0, "") and f'.TH "{program.upper()}" 1' in out and ".SH OPTIONS" in out


def test_print_json_schema(run):
    for program in PROGRAMS:
        code, out, err = run(program, "--print-json-schema")
        assert (code, err) == (0, "") and "log-level" in json.loads(out)["properties"]


def test_failure_points(cluster):
    server = cluster.unified("--failure-points", "model.forward=error")
    status, answer, _ = http("POST", server.url + "/generate", {"text": "a", "sampling_params": greedy(1)})
    assert status == 500, answer
    assert "event=failure_points_active" in server.text()
