"""What the programs print about their own arguments, given to the tools that read it: shells, man, JSON Schema."""
import json
import os
import re
import shutil
import subprocess

import jsonschema
import pytest
import yaml

from conftest import BIN, BINARY_DIR, DEMO_MODEL, SLOW

PROGRAMS = ["router", "prefill-server", "decode-server", "bootstrap-server"]
DOC = BINARY_DIR / "tools" / "tandem-args-doc"
ENV = {"PATH": os.environ["PATH"], "LANG": "C.UTF-8", "HOME": "/nonexistent"}


def run(*words, text=None, env=None):
    return subprocess.run([str(word) for word in words], input=text, capture_output=True, text=True, env=env or ENV,
                          timeout=60 * SLOW)


def printed(program, *words):
    done = run(BIN / program, *words)
    assert (done.returncode, done.stderr) == (0, ""), done.stderr
    return done.stdout


def built_and_not(program):
    """The words of --help: flags that work, and flags that are only known."""
    text = printed(program, "--help")
    built, _, rest = text.partition("\nKnown, but not built yet")
    return tuple({word.rstrip(",") for word in part.split() if word.startswith("-")} for part in (built, rest))


def need(tool):
    found = shutil.which(tool)
    if not found:
        pytest.skip(f"{tool} is not installed")
    return found


def completions(script, words):
    """What bash offers for the last word, as its completion machinery would ask for it."""
    name = words[0]
    ask = (f'eval "$SCRIPT"; spec=$(complete -p {name}); function=${{spec##*-F }}; function=${{function%% *}}; '
           f'COMP_WORDS=("$@"); COMP_CWORD=$(($# - 1)); "$function"; printf "%s\\n" "${{COMPREPLY[@]}}"')
    done = run("bash", "--norc", "-c", ask, "bash", *words, env={**ENV, "SCRIPT": script})
    assert (done.returncode, done.stderr) == (0, ""), done.stderr
    return done.stdout.split()


@pytest.mark.parametrize("program", PROGRAMS)
def test_bash_completes(program):
    script = printed(program, "--print-completion", "bash")
    assert run("bash", "-n", text=script).returncode == 0
    flags = completions(script, [program, "--"])
    assert "--log-level" in flags and "--help" in flags and len(flags) == len(set(flags))
    # Everything that is offered works in this program, or in the workers that a router starts.
    works = set().union(*(built_and_not(name)[0] for name in {program} | ({*PROGRAMS} if program == "router" else set())))
    assert set(flags) <= works
    assert completions(script, [program, "--log-l"]) == ["--log-level"]
    assert completions(script, [program, "--log-level", "d"]) == ["debug"]
    assert completions(script, [program, "--log_level", "=", "w"]) == ["warning"]
    assert completions(script, [program, "--log-level", "="]) == ["debug", "info", "warning", "error", "critical"]
    assert completions(script, [program, "--port", ""]) == []
    assert completions(script, [program, "--enable-metrics", "--port"]) == ["--port", "--port-file"]
    assert completions(script, [program, "--explain", "--expl"]) == ["--explain"]
    assert not set(flags) & {"--enable-lmcache", "--enable-3fs", "--enable-deepep-moe", "--enable-ep-moe"}
    if program == "prefill-server":
        assert completions(script, [program, "--dtype", "fl"]) == ["float16", "float", "float32"]
        # Choices that this build cannot do are not offered.
        assert completions(script, [program, "--attention-backend", ""]) == ["torch_native", "intel_amx"]


def test_bash_completes_files(tmp_path):
    (tmp_path / "model.yaml").write_text("")
    script = printed("router", "--print-completion", "bash")
    for flag in ("--config", "--model-path", "--model"):
        assert completions(script, ["router", flag, str(tmp_path / "mo")]) == [str(tmp_path / "model.yaml")]


@pytest.mark.parametrize("program", PROGRAMS)
def test_zsh_script(program):
    script = printed(program, "--print-completion", "zsh")
    assert script.startswith(f"#compdef {program}\n") and "--log-level=" in script
    zsh = need("zsh")
    assert run(zsh, "-f", "-n", text=script).returncode == 0
    load = 'autoload -Uz compinit; compinit -D -u; eval "$SCRIPT"; print -r -- "${_comps[%s]}"' % program
    done = run(zsh, "-f", "-c", load, env={**ENV, "SCRIPT": script})
    assert done.returncode == 0 and done.stdout.strip() == "_tandem_" + program.replace("-", "_"), done.stderr
    # _arguments reads its specs without a complaint: compadd is replaced, which shows what would be offered.
    ask = ('autoload -Uz compinit; compinit -D -u; eval "$SCRIPT"; '
           '_arguments() { local each; for each in "$@"; do [[ $each == (*(--|-h)*|-S|"*: : ") ]] || exit 3; done; exit 0 }; '
           "_tandem_%s" % program.replace("-", "_"))
    assert run(zsh, "-f", "-c", ask, env={**ENV, "SCRIPT": script}).returncode == 0


@pytest.mark.parametrize("flag", ["--chat-template", "--tokenizer-path"])
def test_files_that_are_not_there_are_told_before_weights_are_read(flag, tmp_path):
    missing = tmp_path / "none"
    wanted = f"argument {flag}: {missing}"
    words = ["--model-path", DEMO_MODEL, flag, missing]
    for program, more in (("prefill-server", ["--dry-run"]), ("prefill-server", ["--port", 0]),
                          ("router", ["--worker-urls", "http://a:1", "--dry-run"])):
        done = run(BIN / program, *words, *more)
        assert done.returncode == 2 and wanted in done.stderr and "KV pool" not in done.stdout, done.stderr
        assert "event=plan" not in done.stderr


def test_a_dry_run_tells_a_clamped_pool():
    done = run(BIN / "prefill-server", "--model-path", DEMO_MODEL, "--max-total-tokens", 10**12, "--dry-run")
    assert done.returncode == 0 and f"--max-total-tokens {10**12} is more than memory holds; using " in done.stderr


@pytest.mark.parametrize("program", PROGRAMS)
@pytest.mark.skipif(SLOW > 1, reason="skipped: sanitizers go by the names of shared libraries")
def test_little_is_loaded_before_help_is_printed(program):
    """Fifty libraries of gRPC's took the loader 10 ms; a second copy of one, from a library that is shared, would be wrong."""
    loaded = run(BIN / program, "--help", env={**ENV, "LD_TRACE_LOADED_OBJECTS": "1"}).stdout
    libraries = [line.split()[0] for line in loaded.splitlines()]
    assert "libc.so.6" in libraries and len(libraries) < 25, libraries
    assert not [name for name in libraries if re.match("lib(grpc|gpr|upb|absl_|protobuf)", name)], libraries


def test_another_shell_is_refused():
    done = run(BIN / "router", "--model-path", DEMO_MODEL, "--print-completion", "fish")
    assert done.returncode == 2 and done.stdout == ""
    assert done.stderr == ("router: error: argument --print-completion: invalid choice: 'fish' (choose from 'bash', "
                           "'zsh')\n")


@pytest.mark.parametrize("program", PROGRAMS)
def test_man_page(program):
    page = printed(program, "--print-man")
    for part in (".TH ", ".SH NAME", ".SH SYNOPSIS", ".SH OPTIONS", ".SH EXIT STATUS", "\\-\\-log\\-level"):
        assert part in page
    groff = need("groff")
    checked = run(groff, "-man", "-ww", "-Tutf8", "-z", text=page)
    assert (checked.returncode, checked.stderr) == (0, ""), checked.stderr
    text = run(groff, "-man", "-Tascii", "-P-cbou", text=page).stdout
    assert "--log-level LOG_LEVEL" in text and "LOG_LEVEL\n" in text
    for flag in completions(printed(program, "--print-completion", "bash"), [program, "--"]):
        assert flag in text, flag


def validator(program):
    schema = json.loads(printed(program, "--print-json-schema"))
    jsonschema.Draft202012Validator.check_schema(schema)
    return jsonschema.Draft202012Validator(schema)


CONFIGS = [
    # (program, YAML, accepted by the program)
    ("prefill-server", "model-path: /m\npage-size: 16\n", True),
    ("prefill-server", "model_path: /m\npage_size: '16'\nlog-level: WARN\nenable-metrics: true\n", True),
    ("prefill-server", "model: /m\nmax-body-bytes: 1.5GB\nshutdown-grace-period-secs: 2m\n", True),
    ("prefill-server", "model: /m\nmem-fraction-static: 0.5\nchunked-prefill-size: '-1'\ncontext-length: null\n", True),
    ("prefill-server", "model: /m\ndisaggregation-mode: null\nsampling-backend: flashinfer\n", True),
    ("prefill-server", "model: /m\njson-model-override-args: {rope_theta: 5.0, a: [1, 2]}\n", True),
    ("prefill-server", "model: /m\nqueue-size: 5\nworker-urls: [http://a:1]\nenable-lora: false\n", True),
    ("router", "worker-urls: [http://a:1, grpc://b:2]\nmax-concurrent-requests: -1\n", True),
    ("router", "worker-urls: http://a:1\npolicy: random\nworker-stall-timeout-ms: 3s\n", True),
    ("router", "pd-disaggregation: true\nprefill: [http://a:1 8998, [http://b:2, null]]\ndecode: [http://c:3]\n", True),
    ("router", "model-path: /m\ndp: 2\npage-size: 16\n", True),
    ("bootstrap-server", "", True),
    ("bootstrap-server", "port: 0\nlog-level: critical\nmodel-path: /m\n", True),
    ("prefill-server", "model: /m\npage-sise: 16\n", False),
    ("prefill-server", "model: [/m]\npage-size: [16]\nenable-metrics: [true]\ndtype: [half]\n", True),
    ("prefill-server", "model: /m\ncuda-graph-bs: []\nenable-lora: [false]\n", True),
    ("prefill-server", "model: /m\ncuda-graph-bs: [1]\n", False),
    ("prefill-server", "model: /m\npage-size: [null]\n", False),
    ("prefill-server", "model: /m\npage-size: [[16]]\n", False),
    ("prefill-server", "model: /m\npage-size: []\n", False),
    ("prefill-server", "model: /m\narm-gemm-use-kai: On\nenable-3fs: 'no'\nenable-ep-moe: true\n", True),
    ("prefill-server", "model: /m\narm-gemm-use-kai: maybe\n", False),
    ("prefill-server", "model: /m\nenable-3fs: true\n", False),
    ("prefill-server", "model: /m\nenable-lmcache: true\n", False),
    ("prefill-server", "model: /m\nenable-lmcache: false\nep-size: 1\ntp-size: '1'\n", True),
    ("prefill-server", "model: /m\nep-size: 2\n", False),
    ("prefill-server", "model: /m\ntorchao-config: int2wo\n", False),
    ("prefill-server", "model: /m\ntorchao-config: int8wo\nmem-fraction-static: '.5'\n", True),
    ("prefill-server", "model: /m\nmem-fraction-static: ''\n", False),
    ("prefill-server", "model: /m\npage-size: '-1'\n", False),
    ("prefill-server", "model: /m\njson-model-override-args: rope\n", False),
    ("router", "worker-urls: [ftp://a:1]\n", False),
    ("prefill-server", "model: /m\npage-size: 0\n", False),
    ("prefill-server", "model: /m\npage-size: 1.5\n", False),
    ("prefill-server", "model: /m\npage-size: [1, 2]\n", False),
    ("prefill-server", "model: /m\npage-size: {a: 1}\n", False),
    ("prefill-server", "model: /m\npage-size: 16KiB\n", False),
    ("prefill-server", "model: /m\nmax-body-bytes: 2MQ\n", False),
    ("prefill-server", "model: /m\nmem-fraction-static: 1\n", False),
    ("prefill-server", "model: /m\ndtype: int8\n", False),
    ("prefill-server", "model: /m\nattention-backend: fa3\n", False),
    ("prefill-server", "model: /m\nlog-level: loud\n", False),
    ("prefill-server", "model: /m\nenable-metrics: 1\n", False),
    ("prefill-server", "model: /m\nquantization: fp8\n", False),
    ("prefill-server", "model: /m\nenable-lora: true\n", False),
    ("prefill-server", "model: /m\njson-model-override-args: [1]\n", False),
    ("prefill-server", "model: /m\ndry-run: true\n", False),
    ("prefill-server", "- model\n", False),
    ("router", "model: /m\npolicy: bucket\n", False),
    ("router", "model: /m\nretry-max-retries: 3\n", False),
    ("router", "worker-urls: {a: 1}\n", False),
    ("bootstrap-server", "port: 65536\n", False),
]


def test_json_schema_agrees_with_the_parser(tmp_path):
    schemas = {program: validator(program) for program in PROGRAMS}
    for index, (program, text, wanted) in enumerate(CONFIGS):
        file = tmp_path / f"{index}.yaml"
        file.write_text(text)
        done = run(BIN / program, "--config", file, "--dump-config")
        assert (done.returncode == 0) == wanted, (program, text, done.stderr)
        problems = [error.message[:200] for error in schemas[program].iter_errors(yaml.safe_load(text))]
        assert (problems == []) == wanted, (program, text, problems)


def test_json_schema_accepts_every_dumped_value():
    """What a program says is in force is something that its file may say."""
    for program in PROGRAMS:
        words = [] if program == "bootstrap-server" else ["--model-path", DEMO_MODEL]
        dump = json.loads(printed(program, *words, "--dump-config"))
        for key in ("argument_sources", "config"):
            dump.pop(key)
        dump = {key: value for key, value in dump.items() if value is not None and value is not False}
        # Defaults of what is not built cannot be said; they are in force without a word.
        check = validator(program)
        schema = check.schema
        keys = schema["patternProperties"].items() if program != "router" else [
            *schema["patternProperties"].items(), *schema["else"]["patternProperties"].items()]
        unbuilt = [pattern for pattern, to in keys if to is not True and
                   schema["$defs"][to["$ref"].split("/")[-1]]["description"].startswith("Known, but not built")]
        dump = {key: value for key, value in dump.items() if not any(re.search(each, key) for each in unbuilt)}
        problems = [f"{error.json_path}: {error.message[:200]}" for error in check.iter_errors(dump)]
        assert problems == [] and len(dump) > 4, (program, problems)


def test_one_tool_prints_the_same_for_all_programs():
    for program in PROGRAMS:
        assert printed(program, "--print-json-schema") == run(DOC, "--json-schema", program).stdout
        assert printed(program, "--print-completion", "bash") == run(DOC, "--completion", "bash", program).stdout
        assert printed(program, "--print-man") == run(DOC, "--man", program).stdout
    everything = run(DOC, "--completion", "bash").stdout
    assert all(f"complete -F _tandem_{program.replace('-', '_')} {program}\n" in everything for program in PROGRAMS)
    totals = json.loads(run(DOC, "--json").stdout)
    assert totals["total"] == 362 and set(totals) >= {"works", "needs_hardware", "not_built", "deprecated", "tiers", "scopes"}
    for words in (["--completion", "fish"], ["--man"], ["--man", "nobody"], ["--json", "x"]):
        done = run(DOC, *words)
        assert done.returncode == 2 and done.stderr.startswith("usage: "), words
