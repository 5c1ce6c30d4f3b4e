"""A model in OpenVINO GenAI that answers one measurement per line of its input; runs in the peers' own Python.

  openvino_worker.py FOLDER KIND THREADS

"prefill N" and "decode CONTEXT STREAMS STEPS" are answered by {"tok_s": ...}. The continuous batching pipeline, as in
../shared/bench/c_openvino.py; greedy, prompts of random ids.
"""
import json
import os
import sys
import time

import numpy as np
import openvino as ov
import openvino_genai as genai


def pipeline(folder, kind, threads):
    scheduler = genai.SchedulerConfig()
    scheduler.cache_size = 4
    scheduler.enable_prefix_caching = False
    scheduler.max_num_batched_tokens = 2048
    scheduler.dynamic_split_fuse = True
    scheduler.max_num_seqs = 64
    properties = {"INFERENCE_NUM_THREADS": threads, "PERFORMANCE_HINT": "LATENCY"}
    if kind == "bf16":
        properties["INFERENCE_PRECISION_HINT"] = "bf16"
    return genai.ContinuousBatchingPipeline(folder, scheduler, "CPU", properties)


class Bench:
    def __init__(self, folder, kind, threads):
        self.pipe = pipeline(folder, kind, threads)
        self.random = np.random.default_rng(0)
        self.next_id = 0

    def run(self, streams, context, count):
        """(seconds until every stream has a token, seconds of the rest, tokens of the rest)."""
        config = genai.GenerationConfig()
        config.max_new_tokens = config.min_new_tokens = count
        config.ignore_eos = True
        config.do_sample = False
        handles = []
        for _ in range(streams):
            ids = ov.Tensor(self.random.integers(0, 31000, (1, context)).astype(np.int64))
            handles.append(self.pipe.add_request(self.next_id, ids, config))
            self.next_id += 1
        begin = time.perf_counter()
        first, base, got = None, 0, [0] * streams
        while self.pipe.has_non_finished_requests():
            self.pipe.step()
            for i, handle in enumerate(handles):
                while handle.can_read():
                    got[i] += sum(len(output.generated_ids) for output in handle.read().values())
            if first is None and min(got) >= 1:
                first, base = time.perf_counter(), sum(got)
        end = time.perf_counter()
        return first - begin, end - first, sum(got) - base

    def answer(self, words):
        if words[0] == "prefill":
            return int(words[1]) / self.run(1, int(words[1]), 2)[0]
        context, streams, steps = map(int, words[1:])
        _, seconds, tokens = self.run(streams, context, steps)
        return tokens / seconds


def main():
    # The library may print to stdout: answers go to what stdout was.
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    bench = Bench(sys.argv[1], sys.argv[2], int(sys.argv[3]))
    bench.run(1, 64, 8)
    print(json.dumps({"ready": genai.__version__}), file=answers, flush=True)
    for line in sys.stdin:
        print(json.dumps({"tok_s": bench.answer(line.split())}), file=answers, flush=True)


main()
