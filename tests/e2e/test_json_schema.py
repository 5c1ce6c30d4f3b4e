"""The JSON Schema of a config file against the reader of that file: what one accepts, the other accepts.

Values are drawn at random for every key (the seed is in each failure) and written as JSON, which is YAML. README.md of
common/args lists what a schema cannot say; such values are not drawn.
"""
import json
import random
import re
import subprocess

import jsonschema
import pytest

from conftest import BIN, BINARY_DIR, SLOW

PROGRAMS = ["router", "prefill-server", "decode-server", "bootstrap-server"]
SEED = 20261122
DOC = BINARY_DIR / "tools" / "tandem-args-doc"
ROUNDS = 40
# What a key needs beside it, so that nothing but its own value can be wrong.
BESIDE = {
    "prefill": ["--pd-disaggregation", "--decode", "http://d:1"],
    "decode": ["--pd-disaggregation", "--prefill", "http://p:1"],
    "prefill-policy": ["--pd-disaggregation"],
    "decode-policy": ["--pd-disaggregation"],
    "prefill-workers": ["--pd-disaggregation"],
}
# Taken from the default of another one, which a random value could meet.
PORTS = {"grpc-port": 30000, "port": None, "disaggregation-bootstrap-port": None}
WORDS = ["", " ", "a", "a:b", "a,b", ",", "a,,b", "é", "\u0000", "a\rb", "null", "true", "False", "tRuE", "yes", "oN", "f",
         "T", "0", "none", "{}", "[]", "{", "http://a:1", "http://a:1/", "http://a:1//", "http://a:0", "http://a:65536",
         "grpc://[::1]:7", "http://grpc://a:1", "https://a:1", "http://a:1 8998", "http://a:1  NoNe", "http://a:1 0",
         "http://a:1 ", "http://a b:1", "h:1", "[::]:22", "h:", ":1", "h:007", "x=error", "x=error;", ";;", "x=sleep(5)",
         "x=3*abort", "x=2+hang", "x=sleep()", "x", "=error", "x=3*2+error", "x=99999999999999999999*error",
         "half", "HALF", "warn", "WARNING", "round_robin", "prefill", "decode", "w8a8_int8", "int8wo", "fp8", "intel_amx",
         "flashinfer", "auto", "dummy", "mooncake", "ascend", "lpm", "random", "least_load"]
UNITS = ["", "B", "K", "KB", "M", "MiB", "Ki", "GB", "TiB", "ms", "s", "m", "h", "x", " s", "kb"]


def bounds(definition):
    """The integers that a key's schema names: values around them are where two readers differ."""
    found = {int(each) for each in re.findall(r'"(?:minimum|maximum|const|exclusiveM\w+)": (-?\d+)', json.dumps(definition))}
    return sorted(found | {0, 1, 2**16, 2**31, 2**32, 2**63, 2**64, 2**70})


def number(rng, around):
    value = rng.choice(around) + rng.choice([-1, 0, 0, 1])
    return rng.choice([value, -value, rng.randrange(-5, 70000), value // rng.choice([1000, 1024, 60])])


def real(rng):
    return rng.choice([0.5, 0.0, 1.0, -0.5, 0.999, 1.5, 3e-5, 1e300, -1e300, rng.uniform(-2, 2)])


def quoted(rng, around):
    sign = rng.choice(["", "", "", "+", "-", "--"])
    digits = rng.choice([str(abs(number(rng, around))), "0" * rng.randrange(1, 4) + str(abs(number(rng, around)))])
    return sign + digits + rng.choice(UNITS)


def decimal(rng):
    """Decimal text without an exponent."""
    return rng.choice(["", "+", "-"]) + rng.choice(["0.5", ".5", "1.", "00.250", "0", "1", "1.0", "0.0", ".", "", "1.5.2", "2.75"])


def scalar(rng, around, is_float):
    kind = rng.randrange(7)
    if kind == 0:
        return number(rng, around)
    if kind == 1:
        # A whole number that is written with a fraction is one that a schema takes for an integer.
        value = real(rng)
        return value if is_float or value != int(value) else value + 0.25 if abs(value) < 1e6 else 0.25
    if kind == 2:
        return quoted(rng, around)
    if kind == 3 and is_float:
        return decimal(rng)
    if kind == 4:
        return rng.choice([True, False, None])
    if kind == 5:
        return "".join(rng.choice("01.-+ehttp:/[]=;,*()xaNoneMiB ") for _ in range(rng.randrange(8)))
    return rng.choice(WORDS)


def value(rng, around, is_float):
    kind = rng.randrange(12)
    if kind == 0:
        return [scalar(rng, around, is_float) for _ in range(rng.randrange(4))]
    if kind == 1:
        return [[scalar(rng, around, is_float) for _ in range(rng.randrange(4))] for _ in range(rng.randrange(1, 3))]
    if kind == 2:
        return [["http://a:1", rng.choice([7, "8", None, 0, 65536, "none", "+9", "x", True])]]
    if kind == 3:
        return {"a": scalar(rng, around, is_float)}
    return scalar(rng, around, is_float)


def beyond_a_schema(key, given, is_float):
    """What the README lists, and what is between two arguments."""
    if key == "json-model-override-args" and isinstance(given, str):
        return given.lstrip(" \t\r\n").startswith("{") and given != "{}"
    flat = given if isinstance(given, list) else [given]
    texts = [each for each in flat if isinstance(each, str)]
    if is_float:
        return any(re.search(r"\d[eE][+-]?\d", text) for text in texts)
    if any(re.search(r"\d[.]\d", text) for text in texts):
        return True
    return key in PORTS and any(str(each).lstrip("+0") == "30000" for each in flat)


def drawn(program, schema):
    """(config, words beside the file) for random values of every key."""
    rng = random.Random(f"{SEED} {program}")
    for key, definition in schema["$defs"].items():
        is_built = not definition["description"].startswith(("Ignored here", "Known, but not built"))
        is_float = key in ("mem-fraction-static", "schedule-conservativeness")
        beside = [] if program == "bootstrap-server" or key in ("model-path", "worker-urls") else ["--model-path", "/m"]
        if program == "router":
            beside = beside + BESIDE.get(key, [])
        # What a router does with keys of its workers depends on whether it starts them.
        bases = [{}]
        if program == "router" and "$ref" not in schema["properties"][key]:
            bases = [{}, {"worker-urls": ["http://w:1"]}, {"pd_disaggregation": True}]
        for _ in range(ROUNDS if is_built else 3):
            given = value(rng, bounds(definition), is_float)
            if not beyond_a_schema(key, given, is_float):
                yield {**rng.choice(bases), key: given}, beside


def wrong_with(program, configs, folder):
    """What the reader of the file says, for each: its errors."""
    lines = []
    for index, (config, beside) in enumerate(configs):
        file = folder / f"{index}.yaml"
        file.write_text(json.dumps(config))
        lines.append("\t".join(["--config", str(file), "--dump-config", *beside]))
    done = subprocess.run([str(DOC), "--try", program], input="\n".join(lines) + "\n", capture_output=True, text=True,
                          check=True, timeout=240 * SLOW)
    answers = done.stdout.removesuffix("\n").split("\n")
    assert len(answers) == len(lines)
    # A value that gives nothing is no error of its own.
    nothing = ("the argument --model-path is required", "needs at least one --")
    return [[text for text in answer.split("\t") if ": error: " in text and not any(each in text for each in nothing)]
            for answer in answers]


@pytest.mark.parametrize("program", PROGRAMS)
def test_random_values_of_every_key(program, tmp_path):
    done = subprocess.run([str(BIN / program), "--print-json-schema"], capture_output=True, text=True, check=True, timeout=60)
    schema = json.loads(done.stdout)
    check = jsonschema.Draft202012Validator(schema)
    configs = list(drawn(program, schema))
    wrong = wrong_with(program, configs, tmp_path)
    for (config, _), errors in zip(configs, wrong):
        problems = [error.message[:300] for error in check.iter_errors(config)]
        assert (not problems) == (not errors), (SEED, program, json.dumps(config), errors, problems)
    refused = sum(1 for errors in wrong if errors)
    assert min(refused, len(wrong) - refused) > 100, (refused, len(wrong))
