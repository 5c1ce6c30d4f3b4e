"""The tokenizer beside tiktoken and HF tokenizers: the same vocabulary of 131k tokens, the same text, one thread."""
from peers import setup
from peers.common import Skip, pinned, run_lines, take_turns

WANT = {"tiktoken": 1.4, "hf-tokenizers": 6.0}
WANTED_ROWS = ("encode_2kB", "decode_2kB", "stream_decode")
SIZES = {2000: "2kB", 100000: "100kB"}
ROWS = [f"{op}_{size}" for size in SIZES.values() for op in ("encode", "decode")] + ["stream_decode"]
MIB = 2


def ours(ctx, arguments):
    """One turn of ours, {row: its line}."""
    rows, why = run_lines([*pinned(ctx.cpus[-1:]), ctx.build / "tokenizer_bench", "--mib", MIB, *arguments])
    if why or not rows:
        raise Skip(why or "tokenizer_bench printed nothing")
    ctx.details += rows
    return {row["row"]: row for row in rows if "row" in row and "value" in row}


def theirs(ctx, python, text):
    """One turn of the peers, ({(row, peer): figure}, {row: tokens}); HF's fast batch call counts where it is faster than
    its plain one."""
    rows, why = run_lines([*pinned(ctx.cpus[-1:]), python, setup.script(ctx, "f_tokenizer.py"), text, ctx.work, MIB])
    if why:
        raise Skip(why)
    ctx.details += rows
    found, tokens = {}, {}
    for row in rows:
        peer = row.get("peer", "").removesuffix("-fast")
        if row.get("same_ids", 1) < 1:
            continue  # other work than tiktoken's and ours
        if "us_per_token" in row:
            found["stream_decode", peer] = row["us_per_token"]
        elif row.get("chunk") in SIZES and "MB_s" in row:
            name = f"{row['op']}_{SIZES[row['chunk']]}"
            found[name, peer] = max(found.get((name, peer), 0), row["MB_s"])
            tokens[name] = row.get("tokens")
    return found, tokens


def same_text(ctx):
    """What both read: the corpus as Python does, in which lines end in a line feed alone, as often as it takes."""
    path, text = ctx.work / "tokenizer-corpus.txt", setup.corpus(ctx).read_text(encoding="utf-8")
    if not text:
        raise Skip("the corpus is empty")
    path.write_text(text * -(-(MIB << 20) // len(text)), encoding="utf-8", newline="\n")
    return path


def beside(ctx):
    """(Arguments of ours, one turn of the peers): the vocabulary is made by the peers' script when they first run."""
    setup.script(ctx, "f_tokenizer.py")
    python = setup.venv(ctx, ["numpy", "tokenizers", "tiktoken", "mistral-common"])
    text, made, folder = same_text(ctx), ctx.work / "tekken-hf.json", ctx.work / "tekken"
    if not made.exists():
        theirs(ctx, python, text)
    folder.mkdir(exist_ok=True)
    (folder / "tokenizer.json").write_bytes(made.read_bytes())
    return ["--model", folder, "--corpus", text], lambda: theirs(ctx, python, text)


def unlike(mine, peers, row):
    """Why the two did not do the same work, or None."""
    for a, (_, tokens) in zip(mine, peers):
        if tokens.get(row) is not None and a[row]["tokens"] != tokens[row]:
            return f"ours makes {a[row]['tokens']:,} tokens of the text, the peers {tokens[row]:,}"
    return None


def measure(ctx):
    vocabulary, why = "131k", None
    try:
        arguments, peers_once = beside(ctx)
    except Skip as reason:
        vocabulary, why, arguments = "demo vocabulary", str(reason), []

        def peers_once():
            raise Skip(why)

    found = take_turns(ctx.rounds, lambda: ours(ctx, arguments), peers_once)
    for row in ROWS:
        mine = [turn[row]["value"] for turn in found.mine if row in turn]
        error = found.error or ("tokenizer_bench printed no such figure" if len(mine) < len(found.mine) else None)
        error = error or unlike(found.mine, found.theirs, row)
        for peer, want in WANT.items():
            name = f"tokenizer {vocabulary} {row} / {peer}"
            if ctx.wants(name):
                ctx.turns(name, mine, [figures.get((row, peer)) for figures, _ in found.theirs],
                          "us/token" if row == "stream_decode" else "MB/s", peer=peer, error=error, note=found.reason,
                          want=want if row in WANTED_ROWS else None)
