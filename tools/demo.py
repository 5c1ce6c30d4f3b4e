#!/usr/bin/env python3
"""The demo: prefill, decode and router on the shipped model, one streamed question, where the time went, stop.

Uses the standard library alone. Needs the four programs under build/release/bin (./dev demo builds them).
"""
import argparse
import http.client
import json
import os
import pathlib
import signal
import socket
import subprocess
import sys
import tempfile
import time

ROOT = pathlib.Path(__file__).resolve().parent.parent
BIN = ROOT / "build" / "release" / "bin"
MODEL = ROOT / "assets" / "demo-model"


def port_is_free(port):
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("127.0.0.1", port))
            return True
        except OSError:
            return False


class Programs:
    """Starts programs, waits for the ports that they report, and stops them all on exit."""

    def __init__(self, folder):
        self.folder = pathlib.Path(folder)
        self.running = []

    def start(self, name, program, *arguments):
        port_file = self.folder / f"{name}.json"
        log = open(self.folder / f"{name}.log", "wb")
        command = [str(BIN / program), *arguments, "--port", "0", "--port-file", str(port_file)]
        print("  $", program, *arguments, file=sys.stderr)
        process = subprocess.Popen(command, stdout=log, stderr=subprocess.STDOUT)
        log.close()
        self.running.append((name, process))
        return process, port_file

    def wait(self, name, process, port_file, seconds=30.0):
        deadline = time.monotonic() + seconds
        while time.monotonic() < deadline:
            if process.poll() is not None:
                break
            if port_file.exists():
                try:
                    port = json.loads(port_file.read_text())["port"]
                    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=2)
                    connection.request("GET", "/health")
                    if connection.getresponse().status == 200:
                        return port
                except (OSError, ValueError, KeyError):
                    pass
            time.sleep(0.01)
        log = (self.folder / f"{name}.log").read_text(errors="replace")
        raise SystemExit(f"demo: {name} did not become ready:\n{log[-3000:]}")

    def stop(self):
        for _, process in reversed(self.running):
            if process.poll() is None:
                process.send_signal(signal.SIGTERM)
        for name, process in self.running:
            try:
                process.wait(timeout=10)
            except subprocess.TimeoutExpired:
                print(f"demo: {name} did not stop, killing it", file=sys.stderr)
                process.kill()
                process.wait()


def ask(port, question, max_tokens):
    body = json.dumps({
        "model": "default", "stream": True, "stream_options": {"include_usage": True}, "return_timings": True,
        "temperature": 0, "max_tokens": max_tokens, "messages": [{"role": "user", "content": question}]})
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
    started = time.monotonic()
    connection.request("POST", "/v1/chat/completions", body, {"Content-Type": "application/json"})
    response = connection.getresponse()
    if response.status != 200:
        raise SystemExit(f"demo: HTTP {response.status}: {response.read().decode(errors='replace')}")
    first = last = None
    usage, timings, done = {}, {}, False
    for line in response:
        line = line.decode("utf-8").strip()
        if not line.startswith("data: "):
            continue
        if line == "data: [DONE]":
            done = True
            break
        chunk = json.loads(line[6:])
        if "error" in chunk:
            raise SystemExit(f"demo: {chunk['error']}")
        usage = chunk.get("usage") or usage
        timings = chunk.get("timings") or timings
        for choice in chunk.get("choices", []):
            text = choice.get("delta", {}).get("content") or ""
            if text:
                last = time.monotonic()
                first = first or last
                sys.stdout.write(text)
                sys.stdout.flush()
    print()
    if not done:
        raise SystemExit("demo: the stream ended without [DONE]")
    return usage, timings, (first or last or started) - started


def table(rows):
    width = max(len(name) for name, _ in rows)
    for name, value in rows:
        print(f"  {name:<{width}}  {value:>12}")


def figure(timings, key, unit, digits=2):
    value = timings.get(key)
    return "n/a" if value is None else f"{value:.{digits}f} {unit}".strip()


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--question", default="What does --disaggregation-mode do?")
    parser.add_argument("--max-tokens", type=int, default=64)
    parser.add_argument("--model-path", default=str(MODEL))
    options = parser.parse_args()
    bootstrap_flags = ["--disaggregation-bootstrap-port", "8998"]
    if not port_is_free(8998):
        print("demo: port 8998 is taken, the system chooses the bootstrap port", file=sys.stderr)
        bootstrap_flags = []
    os.environ.setdefault("UCX_LOG_LEVEL", "error")
    with tempfile.TemporaryDirectory(prefix="tandem-demo-") as folder:
        programs = Programs(folder)
        try:
            started = time.monotonic()
            model = ["--model-path", options.model_path]
            prefill, prefill_file = programs.start(
                "prefill", "prefill-server", *model, "--disaggregation-mode", "prefill", *bootstrap_flags)
            decode, decode_file = programs.start(
                "decode", "decode-server", *model, "--disaggregation-mode", "decode")
            prefill_port = programs.wait("prefill", prefill, prefill_file)
            bootstrap = json.loads(prefill_file.read_text())["bootstrap_port"]
            decode_port = programs.wait("decode", decode, decode_file)
            router, router_file = programs.start(
                "router", "router", *model, "--pd-disaggregation",
                "--prefill", f"http://127.0.0.1:{prefill_port}", str(bootstrap),
                "--decode", f"http://127.0.0.1:{decode_port}")
            port = programs.wait("router", router, router_file)
            ready = time.monotonic() - started
            print(f"\n> {options.question}")
            usage, timings, first_text = ask(port, options.question, options.max_tokens)
            print("\nWhere the time went:")
            table([
                ("start of three programs", f"{ready * 1000:.0f} ms"),
                ("tokenize", figure(timings, "tokenize_ms", "ms")),
                ("queue", figure(timings, "queue_ms", "ms")),
                ("prefill", figure(timings, "prefill_ms", "ms")),
                ("first token (seen here)", f"{first_text * 1000:.2f} ms"),
                ("KV transfer", figure(timings, "kv_transfer_bytes", "bytes", 0)),
                ("KV transfer time", figure(timings, "kv_transfer_ms", "ms")),
                ("decode", figure(timings, "decode_tokens_per_second", "tok/s", 0)),
                ("prompt tokens", str(usage.get("prompt_tokens"))),
                ("answer tokens", str(usage.get("completion_tokens"))),
            ])
        finally:
            programs.stop()


if __name__ == "__main__":
    main()
