"""Arguments that quantise weights while they are loaded."""
import re

from effects import MODEL


def weight_bytes(run, *words):
    code, out, err = run("prefill-server", *MODEL, *words, "--dry-run")
    assert code == 0, err
    return int(re.search(r"  weights +(\d+) bytes", out)[1])


def test_quantization(run):
    assert weight_bytes(run, "--quantization", "w8a8_int8") < 0.7 * weight_bytes(run)


def test_torchao_config(run):
    plain, eight, four = (weight_bytes(run, *words) for words in
                          ((), ("--torchao-config", "int8wo"), ("--torchao-config", "int4wo-128")))
    assert eight < 0.7 * plain and four < 0.8 * eight, (plain, eight, four)
