"""What is wrong with the arguments is told before a file of the model is opened and before a peer is called."""
import contextlib
import ctypes
import os
import select
import socket
import struct
import subprocess

import pytest

from conftest import BIN, DEMO_MODEL, SLOW

IN_OPEN = 0x20
IN_NONBLOCK = 0x800


@contextlib.contextmanager
def opened_in(*folders):
    """A function that lists the names of files that were opened in these folders since it was last called."""
    libc = ctypes.CDLL(None, use_errno=True)
    watch = libc.inotify_init1(IN_NONBLOCK)
    assert watch >= 0
    try:
        for folder in folders:
            assert libc.inotify_add_watch(watch, str(folder).encode(), IN_OPEN) >= 0

        def names():
            found = []
            while select.select([watch], [], [], 0)[0]:
                data = os.read(watch, 65536)
                while data:
                    _, _, _, size = struct.unpack("iIII", data[:16])
                    found.append(data[16:16 + size].rstrip(b"\0").decode())
                    data = data[16 + size:]
            return [name for name in found if name]  # a folder itself has no name
        yield names
    finally:
        os.close(watch)


def run(program, *words):
    done = subprocess.run([str(BIN / program), *map(str, words)], capture_output=True, text=True, stdin=subprocess.DEVNULL,
                          timeout=60 * SLOW)
    return done.returncode, done.stdout, done.stderr


# What is wrong, for programs with a model; each is one kind of error.
WRONG = {
    "unknown": ["--page-sise", 1],
    "value": ["--page-size", 0],
    "choice": ["--dtype", "int3"],
    "not built": ["--enable-lora"],
    "hardware": ["--device", "cuda"],
    "vendor": ["--attention-backend", "ascend"],
    "another program": ["--mesh-port", 1, "--num-reserved-decode-tokens", -1],
    "twice": ["--log-level", "info", "--log-level", "debug"],
    "stray": ["word"],
    "no value": ["--served-model-name"],
    "conflict": ["--quantization", "w8a8_int8", "--torchao-config", "int8wo"],
    "between two": ["--page-size", 16, "--chunked-prefill-size", 100],
    "deprecated": ["--enable-deepep-moe"],
    "JSON": ["--json-model-override-args", "{"],
    "UTF-8": ["--served-model-name", b"\xff".decode("utf-8", "surrogateescape")],
    "no tokenizer": ["--tokenizer-path", "/no/such"],
    "tokenizer is a file": ["--tokenizer-path", "/etc/passwd"],
    "no template": ["--chat-template", "/no/such.jinja"],
    "template is a folder": ["--chat-template", "/etc"],
    "port file": ["--port-file", "/no/such/port"],
    "no config": ["--config", "/no/such.yaml"],
    "kernels": ["--kernel-family", "none-such"],
}


@pytest.mark.parametrize("program", ["prefill-server", "decode-server", "router"])
def test_no_file_of_the_model_is_opened(program, tmp_path):
    broken = tmp_path / "broken.yaml"
    broken.write_text("log-level: info\nhost: [\n")
    with opened_in(DEMO_MODEL) as opened:
        # The watch sees a program that has nothing to refuse.
        assert run(program, "--model-path", DEMO_MODEL, "--dry-run")[0] == 0
        assert "config.json" in opened()
        for kind, words in {**WRONG, "syntax": ["--config", broken]}.items():
            for more in ([], ["--dry-run"]):
                code, out, err = run(program, "--model-path", DEMO_MODEL, "--port", 0, *words, *more)
                assert (code, out) == (2, "") and err.startswith(f"{program}: "), (kind, code, out, err)
                assert opened() == [], (kind, err)


def test_no_worker_is_called_and_no_tokenizer_read():
    """A router with the address of a running worker: what its own arguments name comes first."""
    wrong = {name: words for name, words in WRONG.items() if name in (
        "unknown", "not built", "twice", "stray", "no value", "UTF-8", "no tokenizer", "tokenizer is a file",
        "no template", "template is a folder", "port file", "no config")}
    wrong |= {"range": ["--queue-size", -1], "policy": ["--policy", "best"], "engine": ["--page-size", 16],
              "address": ["--decode", "http://127.0.0.1"]}
    with socket.socket() as listener, opened_in(DEMO_MODEL) as opened:
        listener.bind(("127.0.0.1", 0))
        listener.listen()
        worker = f"http://127.0.0.1:{listener.getsockname()[1]}"
        for kind, words in wrong.items():
            # The tokenizer that is right in all but the rows about it.
            own = [] if "tokenizer" in kind else ["--tokenizer-path", DEMO_MODEL]
            code, out, err = run("router", "--worker-urls", worker, "--port", 0, *own, *words)
            assert (code, out) == (2, "") and err.startswith("router: "), (kind, code, out, err)
            assert not select.select([listener], [], [], 0)[0], (kind, "a worker was called")
            assert opened() == [], (kind, err)
