#!/usr/bin/env python3
"""Writes the tiny seeded models of tests/golden/tiny, one for each way in which the registered architectures differ, and
with --record LLAMA_SERVER what llama.cpp computes for them.

    make_tiny.py                         writes tiny/*.gguf and tiny/*.json (ids and positions)
    make_tiny.py --record LLAMA_SERVER   also adds the key "llamacpp": log-probabilities over the whole vocabulary
    oracle.py tiny                       then adds the key "oracle"

Needs: pip install numpy gguf. The files are the same, byte for byte, whenever numpy's PCG64 is. llama.cpp knows Mistral
files only under the architecture `llama`; for the file of architecture `mistral` it is given a twin that differs in the
names of the keys.
"""

import json
import socket
import subprocess
import sys
import tempfile
import time
import urllib.request
from pathlib import Path

import gguf
import numpy as np
from gguf import GGMLQuantizationType as T
from gguf.quants import quantize

TINY = Path(__file__).resolve().parent / "tiny"
LAYERS, HIDDEN, HEADS, KV_HEADS = 2, 64, 4, 2
# The sequence crosses the border of a cache block (64) and the original context of the YaRN file (48).
LENGTH = 80
POSITIONS = [0, 1, 17, 63, 64, 79]

# name: architecture, type of a tensor, options
MODELS = {
    "llama_f16": dict(arch="llama"),
    "llama_mixed": dict(arch="llama", types={"attn_q": T.Q8_0, "attn_k": T.Q4_1, "attn_v": T.Q5_1, "attn_output": T.Q5_0,
                                              "ffn_gate": T.Q4_0, "ffn_up": T.Q4_1, "ffn_down": T.Q8_0,
                                              "token_embd": T.Q8_0}),
    "llama_factors_linear": dict(arch="llama", scaling="linear", factors=True, tied=False, ffn=32),
    "llama_yarn": dict(arch="llama", scaling="yarn"),
    "mistral_f16": dict(arch="mistral", tied=False, ffn=32),
    "qwen2_f16": dict(arch="qwen2", bias=True),
    "qwen3_f16": dict(arch="qwen3", qk_norm=True, head_dim=32, kv_heads=1, heads=3, ffn=32),
}


def tokens():
    """The byte alphabet of GPT-2, a few merges and two control tokens."""
    printable = [*range(33, 127), *range(161, 173), *range(174, 256)]
    others = [b for b in range(256) if b not in printable]
    letter = {b: chr(b) for b in printable} | {b: chr(256 + i) for i, b in enumerate(others)}
    alphabet = [letter[b] for b in range(256)]
    space = letter[32]
    merges = [("t", "h"), ("th", "e"), ("i", "n"), (space, "a"), ("e", "r"), (space, "the"), ("o", "n"), ("r", "e"),
              ("a", "t"), ("e", "n"), (space, "s"), ("o", "r")]
    # `space + the` needs its right half to be a token; all halves above are.
    names = alphabet + [a + b for a, b in merges] + ["<|endoftext|>", "<|im_start|>", "<|im_end|>", "<|unused|>"]
    kinds = [gguf.TokenType.NORMAL] * (len(names) - 4) + [gguf.TokenType.CONTROL] * 4
    return names, [f"{a} {b}" for a, b in merges], kinds


def write(path, seed, architecture, arch, types=None, tied=True, bias=False, qk_norm=False, scaling=None, factors=False,
          head_dim=16, heads=HEADS, kv_heads=KV_HEADS, ffn=64):
    rng = np.random.Generator(np.random.PCG64(seed))
    types = types or {}
    writer = gguf.GGUFWriter(path, architecture)
    names, merges, kinds = tokens()
    writer.add_name(path.stem)
    writer.add_context_length(256)
    writer.add_embedding_length(HIDDEN)
    writer.add_block_count(LAYERS)
    writer.add_feed_forward_length(ffn)
    writer.add_head_count(heads)
    writer.add_head_count_kv(kv_heads)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_rope_freq_base(10000.0)
    if head_dim * heads != HIDDEN:
        writer.add_key_length(head_dim)
        writer.add_value_length(head_dim)
    else:
        writer.add_rope_dimension_count(head_dim)
    if scaling == "linear":
        writer.add_rope_scaling_type(gguf.RopeScalingType.LINEAR)
        writer.add_rope_scaling_factor(2.0)
    if scaling == "yarn":
        writer.add_rope_scaling_type(gguf.RopeScalingType.YARN)
        writer.add_rope_scaling_factor(4.0)
        writer.add_rope_scaling_orig_ctx_len(48)
        writer.add_rope_scaling_attn_factors(0.9)
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("gpt-2")
    writer.add_token_list(names)
    writer.add_token_types(kinds)
    writer.add_token_merges(merges)
    writer.add_bos_token_id(len(names) - 4)
    writer.add_eos_token_id(len(names) - 2)
    writer.add_add_bos_token(False)

    def matrix(name, rows, cols, std):
        kind = types.get(name.split(".")[-1], T.F16)
        data = rng.normal(0, std, (rows, cols)).astype(np.float32)
        writer.add_tensor(f"{name}.weight", quantize(data, kind), raw_dtype=kind)

    def vector(name, length, mean, std):
        writer.add_tensor(name, rng.normal(mean, std, length).astype(np.float32))

    # Sizes such that scores, residual stream and logits have standard deviations of about 1 to 2: a wrong rotation or a
    # missing bias then moves every log-probability by far more than the tests allow.
    matrix("token_embd", len(names), HIDDEN, 0.25)
    for i in range(LAYERS):
        b = f"blk.{i}"
        vector(f"{b}.attn_norm.weight", HIDDEN, 1, 0.1)
        matrix(f"{b}.attn_q", heads * head_dim, HIDDEN, 0.16)
        matrix(f"{b}.attn_k", kv_heads * head_dim, HIDDEN, 0.16)
        matrix(f"{b}.attn_v", kv_heads * head_dim, HIDDEN, 0.16)
        matrix(f"{b}.attn_output", HIDDEN, heads * head_dim, 0.1)
        if bias:
            vector(f"{b}.attn_q.bias", heads * head_dim, 0, 0.5)
            vector(f"{b}.attn_k.bias", kv_heads * head_dim, 0, 0.5)
            vector(f"{b}.attn_v.bias", kv_heads * head_dim, 0, 0.5)
        if qk_norm:
            vector(f"{b}.attn_q_norm.weight", head_dim, 1.2, 0.3)
            vector(f"{b}.attn_k_norm.weight", head_dim, 1.2, 0.3)
        vector(f"{b}.ffn_norm.weight", HIDDEN, 1, 0.1)
        matrix(f"{b}.ffn_gate", ffn, HIDDEN, 0.16)
        matrix(f"{b}.ffn_up", ffn, HIDDEN, 0.16)
        matrix(f"{b}.ffn_down", HIDDEN, ffn, 0.1)
    vector("output_norm.weight", HIDDEN, 1, 0.1)
    if not tied:
        matrix("output", len(names), HIDDEN, 0.25)
    if factors:
        # As Llama 3.1: fast pairs stay, slow ones are slowed by 8.
        factor = np.array([1, 1, 1.5, 3, 8, 8, 8, 8], dtype=np.float32)
        assert len(factor) == head_dim // 2
        writer.add_tensor("rope_freqs.weight", factor)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def ask(port, ids, vocab):
    # The bias lets it sample a letter (half a character would not be reported); the probabilities are from before it.
    body = dict(prompt=ids, n_predict=1, n_probs=vocab, temperature=0, cache_prompt=False, logit_bias=[[65, 100.0]])
    request = urllib.request.Request(f"http://127.0.0.1:{port}/completion", json.dumps(body).encode(),
                                     {"Content-Type": "application/json"})
    answer = json.load(urllib.request.urlopen(request, timeout=60))
    assert "completion_probabilities" in answer, answer
    top = answer["completion_probabilities"][0]["top_logprobs"]
    by_id = {entry["id"]: entry["logprob"] for entry in top}
    return [round(by_id[i], 6) for i in range(vocab)]


def record(server, path, ids, vocab):
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    # The keys are kept in float32 so that one rounding less stands between the two.
    command = [server, "-m", path, "--port", str(port), "-c", "256", "-np", "1", "-t", "1", "-ctk", "f32", "-ctv", "f32",
               "-fa", "off", "--no-warmup", "--no-repack"]
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        for _ in range(200):
            try:
                urllib.request.urlopen(f"http://127.0.0.1:{port}/health", timeout=5)
                break
            except OSError:
                assert process.poll() is None, f"llama-server does not load {path}"
                time.sleep(0.1)
        return [ask(port, ids[:p + 1], vocab) for p in POSITIONS]
    finally:
        process.terminate()
        process.wait()


def main():
    server = sys.argv[2] if sys.argv[1:2] == ["--record"] else None
    TINY.mkdir(exist_ok=True)
    vocab = len(tokens()[0])
    for seed, (name, options) in enumerate(MODELS.items(), 1):
        path = TINY / f"{name}.gguf"
        write(path, seed, options["arch"], **options)
        ids = np.random.Generator(np.random.PCG64(1000 + seed)).integers(0, vocab - 4, LENGTH).tolist()
        out = {"ids": ids, "positions": POSITIONS}
        if server:
            with tempfile.TemporaryDirectory() as folder:
                twin = Path(folder) / f"{name}.gguf"
                write(twin, seed, options["arch"].replace("mistral", "llama"), **options)
                out["llamacpp"] = record(server, twin, ids, vocab)
            version = subprocess.run([server, "--version"], capture_output=True, text=True)
            out["llamacpp_version"] = (version.stdout + version.stderr).strip().splitlines()[0]
        path.with_suffix(".json").write_text(json.dumps(out, separators=(",", ":")) + "\n")
        print(name, path.stat().st_size, "bytes")


if __name__ == "__main__":
    main()
