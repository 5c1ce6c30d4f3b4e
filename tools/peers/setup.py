"""Installs the peers and builds the models that they and we are measured with, each when it is first needed.

Everything comes through the ordinary package clients and lies in the work folder, in the layout of
../shared/bench/setup.sh: `venv`, `venv-ov`, `sdist`, `llama` (built for this machine), `models`. What is there is used.
"""
import dataclasses
import functools
import json
import os
import pathlib
import shutil
import subprocess
import sys
import sysconfig

from peers.common import Skip, must

ROOT = pathlib.Path(__file__).resolve().parents[2]
# Of the synthetic models: the configuration alone, from which ours makes weights in memory.
CONFIGS = {"dense600": "dense-0.6b", "moe700": "moe-0.7b"}

# llama.cpp by instruction set: what its build may use beside the compiler's baseline.
AVX2 = ("SSE42", "AVX", "AVX2", "FMA", "F16C", "BMI2")
VARIANTS = {"avx2": AVX2, "avx512": (*AVX2, "AVX512", "AVX512_VNNI")}
TARGETS = ("llama-bench", "llama-batched-bench", "llama-server", "llama-quantize")
# GCC 12's _tile_loadconfig declares 8 of the 64 bytes that it reads; without this the peer dies where there is AMX.
AMX_FIX = """#pragma once
#include <immintrin.h>
#ifdef __AMX_TILE__
#define _tile_loadconfig(p) __asm__ volatile("ldtilecfg %0" :: "m"(*(const char (*)[64])(p)) : "memory")
#endif
"""
COMPRESS = """
import sys, nncf, openvino as ov
source, target, kind = sys.argv[1:]
modes = {"int8": (nncf.CompressWeightsMode.INT8_ASYM, {}),
         "int4": (nncf.CompressWeightsMode.INT4_ASYM, {"group_size": 128, "ratio": 1.0})}
mode, options = modes[kind]
model = nncf.compress_weights(ov.Core().read_model(source), mode=mode, **options)
ov.save_model(model, target)
"""
# Reading a GGUF file makes a model in OpenVINO's own format, which is kept.
CONVERT = """
import sys, openvino_genai as og
og.LLMPipeline(sys.argv[1], "CPU", enable_save_ov_model=True)
"""


def say(text):
    print(f"peers: {text}", file=sys.stderr, flush=True)


def jobs():
    return os.environ.get("TANDEM_JOBS", str(os.cpu_count()))


def script(ctx, name):
    """A script of ../shared/bench."""
    found = ctx.shared / name
    if not found.exists():
        raise Skip(f"{name} of ../shared/bench is not here")
    return found


def remembered(make):
    """What could not be had is not tried again in this run: without a network each attempt takes its time."""
    reasons = {}

    @functools.wraps(make)
    def once(*arguments):
        key = str([(a.work, a.shared) if hasattr(a, "work") else a for a in arguments])
        if key in reasons:
            raise Skip(reasons[key])
        try:
            return make(*arguments)
        except Skip as why:
            reasons[key] = str(why)
            raise
    return once


@remembered
def venv(ctx, packages, name="venv"):
    """A Python of its own with the packages; a file beside it remembers what it has."""
    folder = ctx.work / name
    python, marks = folder / "bin" / "python", folder / "tandem-has"
    have = set(marks.read_text().split()) if marks.exists() else set()
    missing = [p for p in packages if p not in have]
    if not missing:
        return python
    ctx.work.mkdir(parents=True, exist_ok=True)
    if not python.exists():
        must([sys.executable, "-m", "venv", folder], "cannot make a virtual environment")
    say("installing " + " ".join(missing))
    must([python, "-m", "pip", "install", "-q", *missing],
         "cannot install " + " ".join(missing))
    marks.write_text("\n".join(sorted(have | set(missing))) + "\n")
    return python


def path():
    """PATH with the folders of system programs, which a user's may lack."""
    return os.environ.get("PATH", "/usr/bin:/bin") + ":/usr/sbin:/sbin"


@remembered
def debian(program, package):
    """The path of a program of Debian's, installed when it is missing and we may."""
    found = shutil.which(program, path=path())
    if found is None and os.geteuid() == 0:
        say(f"installing {package}")
        must(["apt-get", "install", "-y", "--no-install-recommends", package], f"cannot install {package}", timeout=600)
        found = shutil.which(program, path=path())
    if found is None:
        raise Skip(f"{program} is not here (package {package})")
    return found


@remembered
def llama_source(ctx):
    found = sorted((ctx.work / "sdist").glob("llama_cpp_python-*/vendor/llama.cpp"))
    if found:
        return found[-1]
    python = venv(ctx, ["wheel", "setuptools", "scikit-build-core"])
    say("downloading llama.cpp")
    must([python, "-m", "pip", "download", "-q", "--no-deps", "--no-build-isolation", "--no-binary", "llama-cpp-python",
          "llama-cpp-python", "-d", ctx.work / "sdist"], "cannot download llama-cpp-python")
    archive = sorted((ctx.work / "sdist").glob("llama_cpp_python-*.tar.gz"))[-1]
    must(["tar", "-C", ctx.work / "sdist", "-xf", archive], "cannot unpack llama-cpp-python")
    found = sorted((ctx.work / "sdist").glob("llama_cpp_python-*/vendor/llama.cpp"))
    if not found:
        raise Skip("llama-cpp-python has no llama.cpp in it")
    fix, tiles = ctx.work / "amxfix.h", found[-1] / "ggml" / "src" / "ggml-cpu" / "amx" / "mmq.cpp"
    fix.write_text(AMX_FIX)
    tiles.write_text(f'#include "{fix}"\n' + tiles.read_text())
    return found[-1]


def llama(ctx, variant=""):
    """The folder of llama.cpp's programs: built for this machine, or for just the instructions of a variant."""
    build = ctx.work / ("llama" + (f"-{variant}" if variant else ""))
    targets = TARGETS if not variant else TARGETS[:1]
    folder = build / "bin"
    if all((folder / name).exists() for name in targets):
        return folder
    source = llama_source(ctx)
    for tool in ("cmake", "ninja"):
        if shutil.which(tool) is None:
            raise Skip(f"llama.cpp needs {tool}")
    flags = ["-DGGML_NATIVE=ON"] if not variant else ["-DGGML_NATIVE=OFF", *(f"-DGGML_{f}=ON" for f in VARIANTS[variant])]
    off = ("LLAMA_CURL", "LLAMA_OPENSSL", "LLAMA_BUILD_TESTS", "LLAMA_BUILD_EXAMPLES", "LLAMA_BUILD_UI",
           "LLAMA_USE_PREBUILT_UI", "BUILD_SHARED_LIBS")
    say(f"building llama.cpp {variant or 'for this machine'}: about a quarter of an hour on two cores")
    must(["cmake", "-S", source, "-B", build, "-G", "Ninja", "-DCMAKE_BUILD_TYPE=Release", *flags,
          *(f"-D{name}=OFF" for name in off)], "cannot configure llama.cpp")
    must(["cmake", "--build", build, "-j", jobs(), "--target", *targets], "cannot build llama.cpp", timeout=7200)
    return folder


def corpus(ctx):
    path = ctx.work / "corpus.txt"
    if not path.exists():
        must([sys.executable, script(ctx, "make_corpus.py"), path, "5"], "cannot collect a corpus")
    return path


@remembered
def checkpoint(ctx, name="dense600"):
    """The folder of a synthetic model, as Hugging Face has it; its bf16 GGUF lies beside it."""
    folder = ctx.work / "models" / name
    if (folder / "tokenizer_config.json").exists() and gguf_path(ctx, name, "bf16").exists():
        return folder
    maker = script(ctx, "make_models.py")
    python = venv(ctx, ["numpy", "gguf", "tokenizers"])
    say(f"making the model {name}")
    must([python, maker, ctx.work / "models", corpus(ctx), name], f"cannot make {name}")
    return folder


@dataclasses.dataclass
class Weights:
    """What ours is measured with: the peers' checkpoint or, where that cannot be had, weights made in memory."""
    folder: pathlib.Path
    why_dummy: str | None = None

    def for_bench(self):
        return ["--model", self.folder, *(["--dummy"] if self.why_dummy else [])]

    def for_server(self):
        if not self.why_dummy:
            return ["--model-path", self.folder]
        # One seed: servers of one fleet have to have the same weights.
        return ["--model-path", self.folder, "--load-format", "dummy", "--random-seed", 1]

    @property
    def note(self):
        return f"weights made in memory: {self.why_dummy}" if self.why_dummy else None


def weights(ctx, name="dense600"):
    try:
        return Weights(checkpoint(ctx, name))
    except Skip as why:
        return Weights(without_weights(ctx, name), str(why))


def without_weights(ctx, name):
    """The folder of a synthetic model but for its weights. Each of its tokens has a text, as in the checkpoint: what has
    none is no event of a stream."""
    config, demo = (ROOT / "bench" / "models" / CONFIGS[name] / "config.json").read_text(), ROOT / "assets" / "demo-model"
    tokenizer = json.loads((demo / "tokenizer.json").read_text())
    vocab = tokenizer["model"]["vocab"]
    vocab |= {f"<|extra_{i}|>": i for i in range(len(vocab), json.loads(config)["vocab_size"])}
    folder = ctx.work / "models" / f"{name}-no-weights"
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(config)
    (folder / "tokenizer.json").write_text(json.dumps(tokenizer))
    shutil.copy(demo / "tokenizer_config.json", folder)
    return folder


def gguf_path(ctx, name, kind):
    return ctx.work / "models" / f"{name}-{kind}.gguf"


def gguf(ctx, name, kind):
    """The model in one of llama.cpp's formats: bf16, q8_0, q4_0, f16. Its tools leave the head of q4_0 with 6.6 bits; of
    "q4_0-pure" it has 4.5, as every other matrix."""
    checkpoint(ctx, name)
    path = gguf_path(ctx, name, kind)
    if not path.exists():
        say(f"converting {name} to {kind}")
        part = path.with_suffix(".part")
        kind, _, pure = kind.partition("-")
        options = [f"--{pure}"] if pure else []
        must([llama(ctx) / "llama-quantize", *options, gguf_path(ctx, name, "bf16"), part, kind.upper()], "llama-quantize")
        part.rename(path)
    return path


def openvino(ctx, name, kind):
    """(Python, folder): the model in OpenVINO's format as bf16 (stored as 16 bit), int8 or int4."""
    checkpoint(ctx, name)
    python = venv(ctx, ["openvino", "openvino-genai", "openvino-tokenizers", "nncf"], "venv-ov")
    folder = ctx.work / "models" / f"{name}-ov-{kind}"
    if (folder / "openvino_detokenizer.xml").exists():
        return python, folder
    folder.mkdir(parents=True, exist_ok=True)
    say(f"converting {name} to OpenVINO {kind}")
    if kind == "bf16":
        kept = gguf_path(ctx, name, "f16").exists()
        source = gguf(ctx, name, "f16")
        link = folder / source.name
        link.unlink(missing_ok=True)
        link.symlink_to(source)
        must([python, "-c", CONVERT, link], "openvino_genai cannot read the model", timeout=900)
        link.unlink()
        if not kept:
            source.unlink()
    else:
        _, source = openvino(ctx, name, "bf16")
        must([python, "-c", COMPRESS, source / "openvino_model.xml", folder / "openvino_model.xml", kind],
             "nncf cannot compress the model", timeout=900)
        for each in sorted(source.glob("openvino_*tokenizer.*")):
            shutil.copy(each, folder)
    if not (folder / "openvino_detokenizer.xml").exists():
        raise Skip("openvino_genai made no model")
    return python, folder


def ucx_perftest(ctx):
    """({version: (command, environment)}, {version: why it is not here}) of Debian's ucx_perftest and a newer one of
    PyPI's."""
    def from_pypi():
        python = venv(ctx, ["libucx-cu12"])
        site = packages(python)
        program = site / "libucx" / "bin" / "ucx_perftest"
        if not program.exists():
            raise Skip("libucx-cu12 has no ucx_perftest in it")
        program.chmod(0o755)
        return [program], {"LD_LIBRARY_PATH": f"{site}/libucx/lib:{site}/libucx_cu12.libs"}

    found, missing = {}, {}
    for version, make in (("UCX (Debian)", lambda: ([debian("ucx_perftest", "ucx-utils")], {})), ("UCX 1.22", from_pypi)):
        try:
            found[version] = make()
        except Skip as why:
            missing[version] = str(why)
    return found, missing


def packages(python):
    """Where a virtual environment has what is installed in it."""
    return python.parent.parent / "lib" / f"python{sysconfig.get_python_version()}" / "site-packages"


def versions(ctx):
    """{peer: version} of what is installed at the moment; nothing is installed for it."""
    found = {}
    for name in ("venv", "venv-ov"):
        folder = ctx.work / name
        marks = folder / "tandem-has"
        wanted = {p.replace("-", "_") for p in marks.read_text().split()} if marks.exists() else set()
        for info in packages(folder / "bin" / "python").glob("*.dist-info"):
            package, version = info.name.removesuffix(".dist-info").rsplit("-", 1)
            if package.lower() in wanted:
                found[package.replace("_", "-")] = version
    for source in sorted((ctx.work / "sdist").glob("llama_cpp_python-*/vendor/llama.cpp")):
        found["llama.cpp"] = "of " + source.parents[1].name
    for package in ("ucx-utils", "nginx-light", "haproxy", "wrk"):
        try:
            done = subprocess.run(["dpkg-query", "-W", "-f", "${Version}", package], capture_output=True, text=True)
        except OSError:
            break
        if done.returncode == 0 and done.stdout:
            found[package] = done.stdout
    return dict(sorted(found.items()))
