"""Old names, experts, and what is for hardware and libraries that are not here: refused, ignored or mapped by name."""
from effects import MODEL, notes, refused, warned_and_refused


def ignored(cluster, *words):
    """The one warning of a server that starts all the same, and what it then reports."""
    server = cluster.unified(*words)
    lines = notes(server, words[0])
    assert len(lines) == 1 and "level=warn" in lines[0], server.text()
    return lines[0], server.info()


def mapped(run, old, flag, value):
    """One warning with the replacement, then what is true of the replacement."""
    warning = f"prefill-server: warning: {old} is deprecated; use {flag} {value}"
    warnings, text = warned_and_refused(run, "prefill-server", *MODEL, old)
    assert warnings == [warning], warnings
    assert f"argument {old}: means {flag} {value}: {value} needs a CUDA device" in text, text
    warnings, text = warned_and_refused(run, "prefill-server", *MODEL, old, flag,
                                        "none" if flag == "--moe-a2a-backend" else "auto")
    assert warnings == [warning], warnings
    assert f"argument {old}: means {flag} {value}, which contradicts {flag} " in text, text


def test_enable_ep_moe(cluster):
    line, info = ignored(cluster, "--enable-ep-moe")
    assert "--enable-ep-moe is deprecated; use --ep-size" in line
    assert (info["ep_size"], info["argument_sources"]["ep_size"]) == (info["tp_size"], "cli")


def test_enable_deepep_moe(run):
    mapped(run, "--enable-deepep-moe", "--moe-a2a-backend", "deepep")


def test_enable_flashinfer_cutlass_moe(run):
    mapped(run, "--enable-flashinfer-cutlass-moe", "--moe-runner-backend", "flashinfer_cutlass")


def test_enable_flashinfer_cutedsl_moe(run):
    mapped(run, "--enable-flashinfer-cutedsl-moe", "--moe-runner-backend", "flashinfer_cutedsl")


def test_enable_flashinfer_trtllm_moe(run):
    mapped(run, "--enable-flashinfer-trtllm-moe", "--moe-runner-backend", "flashinfer_trtllm")


def test_enable_triton_kernel_moe(run):
    mapped(run, "--enable-triton-kernel-moe", "--moe-runner-backend", "triton_kernel")


def test_enable_flashinfer_mxfp4_moe(run):
    mapped(run, "--enable-flashinfer-mxfp4-moe", "--moe-runner-backend", "flashinfer_mxfp4")


def test_expert_parallel_size(cluster, run):
    assert "--expert-parallel-size: 2 is not built yet" in refused(run, "decode-server", *MODEL, "--ep", 2)
    server = cluster.unified("--ep-size", 1)
    assert len(notes(server, "--expert-parallel-size has no effect")) == 1, server.text()


def test_moe_a2a_backend(run):
    for name, device in (("deepep", "a CUDA device"), ("mooncake", "an RDMA device"),
                         ("ascend_fuseep", "another vendor's hardware")):
        text = refused(run, "prefill-server", *MODEL, "--moe-a2a-backend", name)
        assert f"--moe-a2a-backend: {name} needs {device}" in text and "available here: none" in text, text


def test_moe_runner_backend(cluster, run):
    assert "--moe-runner-backend: triton needs a CUDA device" in refused(
        run, "prefill-server", *MODEL, "--moe-runner-backend", "triton")
    server = cluster.unified("--moe-runner-backend", "auto")
    assert len(notes(server, "--moe-runner-backend has no effect")) == 1, server.text()


def test_elastic_ep_backend(run):
    assert "--elastic-ep-backend: mooncake needs an RDMA device" in refused(
        run, "prefill-server", *MODEL, "--elastic-ep-backend", "mooncake")


def test_mooncake_ib_device(cluster, run):
    assert "--mooncake-ib-device: 'mlx5_0,' is not a list" in refused(
        run, "prefill-server", *MODEL, "--mooncake-ib-device", "mlx5_0,")
    line, info = ignored(cluster, "--mooncake-ib-device", "mlx5_0,mlx5_1")
    assert "for --elastic-ep-backend mooncake only, ignored" in line and info["mooncake_ib_device"] == "mlx5_0,mlx5_1"


def test_enable_lmcache(run):
    text = refused(run, "prefill-server", *MODEL, "--enable-lmcache")
    assert "--enable-lmcache: needs LMCache" in text and "--enable-hierarchical-cache" in text, text


def test_enable_mscclpp(cluster):
    line, info = ignored(cluster, "--enable-mscclpp")
    assert "for MSCCL++ on CUDA devices only, ignored" in line and info["enable_mscclpp"] is True


def test_arm_gemm_use_kai(cluster):
    line, info = ignored(cluster, "--arm-gemm-use-kai", "yes")
    assert "for ARM only, ignored" in line and info["arm_gemm_use_kai"] is True


def test_rocm_hipblaslt_config(cluster):
    line, info = ignored(cluster, "--rocm-hipblaslt-config", "tuned.csv")
    assert "for ROCm only, ignored" in line and info["rocm_hipblaslt_config"] == "tuned.csv"


def test_enable_3fs(run):
    text = refused(run, "prefill-server", *MODEL, "--enable-3fs", "true")
    assert "--enable-3fs: needs 3FS" in text and "--hicache-storage-backend file" in text, text
