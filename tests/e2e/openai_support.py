"""What the tests with the official openai client share."""
import dataclasses

import pytest

from conftest import SLOW

openai = pytest.importorskip("openai")

QUESTION = [{"role": "user", "content": "What does --disaggregation-mode do?"}]
ON = {"ignore_eos": True}
# With the scalar kernels 3,000 tokens take seconds: a request that ends before was ended by somebody.
UNHURRIED = ("--kernel-family", "reference")


@dataclasses.dataclass
class Served:
    url: str
    workers: list
    kind: str

    def client(self, key="unused", **options):
        # Retries would hide the answer that a test is about.
        return openai.OpenAI(base_url=self.url + "/v1", api_key=key, max_retries=0, timeout=60 * SLOW, **options)


def start(cluster, kind, *args, workers=()):
    """`args` go to the program that clients talk to, `workers` to those that run the model."""
    workers = ("--served-model-name", "demo", *workers)
    if kind == "alone":
        server = cluster.unified(*workers, *args)
        return Served(server.url, [server], kind)
    router, prefill, decode = cluster.pd(*workers, router_args=args)
    return Served(router.url, prefill + decode, kind)


def ask(client, text=None, **options):
    options.setdefault("temperature", 0)
    messages = QUESTION if text is None else [{"role": "user", "content": text}]
    return client.chat.completions.create(model="demo", messages=messages, **options)


def complete(client, prompt, **options):
    options.setdefault("temperature", 0)
    return client.completions.create(model="demo", prompt=prompt, **options)


@pytest.fixture(params=["alone", "pd"])
def kind(request):
    return request.param


@pytest.fixture
def served(cluster, kind):
    return start(cluster, kind)
