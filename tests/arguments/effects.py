"""What several effect tests need."""
import json
import pathlib
import re
import shutil
import socket
import threading

from cluster_support import DEMO_MODEL, events, generate, greedy, http, wait_for

MODEL = ["--model-path", str(DEMO_MODEL)]
LONG = "The quick brown fox jumps over the lazy dog. "
PROGRAMS = ["router", "prefill-server", "decode-server", "bootstrap-server"]


def plan_line(server):
    """The fields of the start-up line that tells the plan."""
    line = next(line for line in server.text().splitlines() if " event=plan " in line)
    return dict(re.findall(r"(\w+)=(\S+)", line))


def notes(server, flag):
    """Start-up lines about an argument."""
    return [line for line in server.text().splitlines() if "event=argument" in line and flag in line]


def batches(server):
    """(prompt tokens, decoding sequences) of every step so far; needs --log-level debug."""
    return [(int(tokens), int(decoding)) for tokens, decoding in re.findall(
        r"event=batch prefill_sequences=\d+ prefill_tokens=(\d+) decode_sequences=(\d+)", server.text())]


def running_together(server):
    """The most requests that ran in one step; needs --decode-log-interval 1."""
    return max(int(n) for n in re.findall(r"event=decode_status running=(\d+)", server.text()))


def ended_or_listens(program):
    """Exit status of a program that ends by itself; None for one that wrote its port file instead."""
    wait_for(lambda: not program.alive() or program.port_file.exists(), 60, "the program ends or listens")
    return program.process.poll()


def threads_named(server, name):
    """How many threads of a program are called name-0, name-1, ..."""
    names = [(task / "comm").read_text() for task in pathlib.Path(f"/proc/{server.pid}/task").iterdir()]
    return len([each for each in names if re.fullmatch(rf"{name}-\d+\n", each)])


class Taken:
    """A port of 127.0.0.1 that is in use, as long as this lasts."""

    def __enter__(self):
        self.socket = socket.socket()
        self.socket.bind(("127.0.0.1", 0))
        self.socket.listen()
        return self.socket.getsockname()[1]

    def __exit__(self, *_):
        self.socket.close()


# A token takes milliseconds with these: a request of some thousand tokens lasts longer than any pause of a test.
SLOWLY = ["--kernel-family", "reference", "--compute-threads", 1]


class Held:
    """A request that runs until it is let go: its first token has come, the others are left. For SLOWLY servers."""

    def __init__(self, url, tokens=4000, **prompt):
        body = {**(prompt or {"text": "a"}), "sampling_params": greedy(tokens), "stream": True}
        self.stream = events(url + "/generate", body)
        next(self.stream)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.stream.close()


def in_threads(*calls):
    """Results of calls that are made at the same time."""
    results = [None] * len(calls)

    def one(i, call):
        results[i] = call()
    threads = [threading.Thread(target=one, args=pair) for pair in enumerate(calls)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return results


def model_folder(folder, leave_out=()):
    """A copy of the demo model without some files."""
    folder = pathlib.Path(folder)
    folder.mkdir()
    for file in DEMO_MODEL.iterdir():
        if file.is_file() and file.name not in leave_out:
            shutil.copy(file, folder / file.name)
    return folder


def chat_tokens(server, text="Hello"):
    """Prompt tokens of a chat with one message."""
    status, answer, _ = http("POST", server.url + "/v1/chat/completions", {
        "model": "default", "messages": [{"role": "user", "content": text}], "max_tokens": 1})
    assert status == 200, answer
    return answer["usage"]["prompt_tokens"]


def refused(run, program, *words):
    """The one sentence with which a program refuses its arguments (a dry run, so that it ends either way)."""
    warnings, text = warned_and_refused(run, program, *words)
    assert not warnings, warnings
    return text


def warned_and_refused(run, program, *words):
    """As refused(), with the warnings before that sentence."""
    code, out, err = run(program, *words, "--dry-run")
    assert code == 2, (code, out, err)
    warnings = [line for line in err.splitlines() if line.startswith(f"{program}: warning: ")]
    lines = err.splitlines()[len(warnings):]
    assert len(lines) == 1 and lines[0].startswith(f"{program}: error: "), err
    return warnings, lines[0]


def dumped(run, program, *words):
    code, out, err = run(program, *words, "--dump-config")
    assert code == 0, err
    return json.loads(out)


__all__ = [name for name in dir() if not name.startswith("_")] + ["generate", "greedy", "http", "wait_for"]
