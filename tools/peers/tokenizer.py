"""The tokenizer beside tiktoken and HF tokenizers: the same vocabulary of 131k tokens, the same text, one thread."""
from peers import setup
from peers.common import Skip, median, pinned, run_lines

WANT = {"tiktoken": 1.4, "hf-tokenizers": 6.0}
MIB = 2


def ours(ctx, folder, corpus):
    rows, why = run_lines([*pinned(ctx.cpus[-1:]), ctx.build / "tokenizer_bench", "--model", folder, "--corpus", corpus,
                           "--mib", MIB])
    if why:
        raise Skip(why)
    return {row["row"]: row["value"] for row in rows}


def theirs(ctx, python, corpus):
    """By row and peer; HF's fast batch call counts where it is faster than its plain one."""
    rows, why = run_lines([*pinned(ctx.cpus[-1:]), python, ctx.shared / "f_tokenizer.py", corpus, ctx.work, MIB])
    if why:
        raise Skip(why)
    ctx.details += rows
    found = {}
    for row in rows:
        peer = row["peer"].removesuffix("-fast")
        if "us_per_token" in row:
            found["stream_decode", peer] = row["us_per_token"]
        else:
            key = (f"{row['op']}_{ {2000: '2kB', 100000: '100kB'}[row['chunk']]}", peer)
            found[key] = max(found.get(key, 0), row["MB_s"])
    return found


def measure(ctx):
    python = setup.venv(ctx, ["numpy", "tokenizers", "tiktoken", "mistral-common"])
    corpus, folder = setup.corpus(ctx), ctx.work / "tekken"
    peers = [theirs(ctx, python, corpus)]
    folder.mkdir(exist_ok=True)
    (folder / "tokenizer.json").write_bytes((ctx.work / "tekken-hf.json").read_bytes())
    mine = [ours(ctx, folder, corpus)]
    for _ in range(1, ctx.rounds):
        mine.append(ours(ctx, folder, corpus))
        peers.append(theirs(ctx, python, corpus))
    for (row, peer) in sorted(peers[0]):
        less = row == "stream_decode"
        a, b = [m[row] for m in mine], [p[row, peer] for p in peers]
        wanted = WANT[peer] if row in ("encode_2kB", "decode_2kB", "stream_decode") else None
        ctx.row(f"tokenizer 131k {row} / {peer}", median(a), "us/token" if less else "MB/s", peer=peer,
                peer_value=median(b), ratio=median([y / x if less else x / y for x, y in zip(a, b)]), want=wanted)
