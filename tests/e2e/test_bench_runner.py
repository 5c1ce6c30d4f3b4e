"""./dev bench: the table, the JSON and what is said of peers that are not here."""
import json
import subprocess
import sys

from conftest import ROOT, SLOW

PROGRAM = """#!/bin/sh
echo '{"bench":"x","row":"cost","policy":"p","connections":8,"value":20,"unit":"us","target":10}'
echo '{"bench":"x","row":"rate","value":300,"unit":"MB/s","target":200}'
echo 'not a line of figures'
echo '{"bench":"linear","family":"f","dtype":"bf16","shape":"s","gb_s":9.0,"limit":"read_gb_s","limit_value":10.0,"fraction":0.9}'
"""


def bench(tmp_path, *words, shared="none"):
    done = subprocess.run([sys.executable, str(ROOT / "tools" / "bench.py"), "--build", str(tmp_path / "bench"), *words],
                          capture_output=True, text=True, timeout=60 * SLOW,
                          env={"PATH": "/usr/bin:/bin", "TANDEM_SHARED_DIR": str(tmp_path / shared)})
    return done


def test_ratios_failures_and_skipped_peers(tmp_path):
    folder = tmp_path / "bench"
    folder.mkdir()
    for name, text in (("x_bench", PROGRAM), ("y_bench", "#!/bin/sh\necho broken >&2\nexit 3\n"), ("serve", "#!/bin/sh\nexit 1\n")):
        (folder / name).write_text(text)
        (folder / name).chmod(0o755)
    done = bench(tmp_path, "x_")
    assert done.returncode == 0, done.stderr
    report = json.loads((tmp_path / "bench.json").read_text())
    assert {key for key in report["machine"]} >= {"cpu", "threads", "flags", "kernel", "commit"}
    ratios = {row["figure"]: row["ratio"] for row in report["ratios"]}
    # Of microseconds less is better, of a rate more.
    assert ratios == {"x cost p 8": 0.5, "x rate": 1.5, "linear f bf16 s": 0.9}
    assert "x cost p 8" in done.stdout

    done = bench(tmp_path, "--peers")
    assert done.returncode == 1 and "broken" in done.stderr
    report = json.loads((tmp_path / "bench.json").read_text())
    assert report["failed"] == {"y_bench": "broken"}
    rows = [row for part in report["parts"].values() for row in part["rows"]]
    assert {row["row"] for row in rows} >= {"engine", "server", "pd", "router", "tokenizer", "transfer"}
    assert all(row["skipped"] == "../shared/bench is not here" for row in rows)
    assert "engine" in done.stdout and "skipped: ../shared/bench is not here" in done.stdout

    assert bench(tmp_path, "nothing-like-it").returncode == 2
