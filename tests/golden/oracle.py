#!/usr/bin/env python3
"""An independent forward pass: plain numpy in float64 over weights that the `gguf` package dequantizes.

It is written from the definitions of the models (Llama, Qwen2, Qwen3 as their authors publish them: RoPE turns halves of
a head), not from Taper's code: GGUF's llama files permute the rows of q and k for another kind of RoPE, and here the
permutation is undone, where Taper turns adjacent pairs.

    oracle.py tiny                       adds the key "oracle" to every tiny/*.json
    oracle.py default-model MODEL.gguf   writes smollm2_oracle.json

Needs: pip install numpy gguf. Weights are read once and kept in float64; 135M parameters take 1.1 GB.
"""

import json
import math
import platform
import sys
from importlib.metadata import version
from pathlib import Path

import numpy as np
from gguf import GGUFReader
from gguf.quants import dequantize

HERE = Path(__file__).resolve().parent
# Positions of each sequence of the default model that are recorded: all of the prompt and this many generated tokens.
GENERATED = 64
TOP = 20


class Model:
    """Weights and metadata of a GGUF file."""

    def __init__(self, path):
        reader = GGUFReader(path)
        self.keys = {name: field.contents() for name, field in reader.fields.items() if not name.startswith("tokenizer")}
        self.tensors = {t.name: dequantize(t.data, t.tensor_type).astype(np.float64) for t in reader.tensors}
        self.architecture = self.keys["general.architecture"]
        self.num_layers = self.key("block_count")
        self.hidden = self.key("embedding_length")
        self.num_heads = self.key("attention.head_count")
        self.num_kv_heads = self.key("attention.head_count_kv", self.num_heads)
        self.head_dim = self.key("attention.key_length", self.hidden // self.num_heads)
        self.eps = self.key("attention.layer_norm_rms_epsilon")

    def key(self, name, default=None):
        value = self.keys.get(f"{self.architecture}.{name}", default)
        assert value is not None, name
        return value

    def optional(self, name):
        return self.tensors.get(name)

    def __getitem__(self, name):
        return self.tensors[name]


def rms_norm(x, weight, eps):
    return x / np.sqrt(np.mean(x * x, axis=-1, keepdims=True) + eps) * weight


def log_softmax(x):
    x = x - x.max(axis=-1, keepdims=True)
    return x - np.log(np.exp(x).sum(axis=-1, keepdims=True))


def rope_frequencies(model):
    """Radians per position of each pair, and the factor on cos and sin."""
    dim = model.key("rope.dimension_count", model.head_dim)
    assert dim == model.head_dim, "partial rotation is not written here"
    base = model.key("rope.freq_base", 10000.0)
    frequency = base ** (-np.arange(0, dim, 2, dtype=np.float64) / dim)
    kind = model.key("rope.scaling.type", "linear")
    factor = model.key("rope.scaling.factor", 1.0)
    magnitude = 1.0
    if kind == "linear":
        frequency = frequency / factor
    elif kind == "yarn":
        original = model.key("rope.scaling.original_context_length")

        def pair_that_turns(times):
            return dim * math.log(original / (times * 2 * math.pi)) / (2 * math.log(base))

        low = max(math.floor(pair_that_turns(32)), 0)
        high = min(math.ceil(pair_that_turns(1)), dim - 1)
        slowed = np.clip((np.arange(dim // 2) - low) / max(high - low, 0.001), 0, 1)
        frequency = frequency / factor * slowed + frequency * (1 - slowed)
        magnitude = (0.1 * math.log(factor) + 1) * model.key("rope.scaling.attn_factor", 1.0)
    else:
        assert kind == "none", kind
    factors = model.optional("rope_freqs.weight")
    if factors is not None:
        frequency = frequency / factors
    return frequency, magnitude


def rotate(x, cos, sin):
    """x: [tokens, heads, head_dim]; element i turns together with i + head_dim / 2."""
    half = x.shape[-1] // 2
    first, second = x[..., :half], x[..., half:]
    return np.concatenate([first * cos - second * sin, second * cos + first * sin], axis=-1)


def heads(model, x, weight, bias, num_heads, permuted):
    y = x @ weight.T
    if bias is not None:
        y = y + bias
    y = y.reshape(len(x), num_heads, model.head_dim)
    if permuted:
        # GGUF put row i of the first half at 2i and row i of the second half at 2i + 1.
        y = np.concatenate([y[..., 0::2], y[..., 1::2]], axis=-1)
    return y


def forward(model, ids):
    """Log-probabilities after every token of one sequence, [tokens, vocabulary]."""
    permuted = model.architecture in ("llama", "mistral")
    n = len(ids)
    frequency, magnitude = rope_frequencies(model)
    angle = np.arange(n)[:, None, None] * frequency
    cos, sin = np.cos(angle) * magnitude, np.sin(angle) * magnitude
    future = np.triu(np.full((n, n), -np.inf), 1)
    group = model.num_heads // model.num_kv_heads

    h = model["token_embd.weight"][ids]
    for i in range(model.num_layers):
        def t(name, i=i):
            return model[f"blk.{i}.{name}.weight"]

        def bias(name, i=i):
            return model.optional(f"blk.{i}.{name}.bias")

        x = rms_norm(h, t("attn_norm"), model.eps)
        q = heads(model, x, t("attn_q"), bias("attn_q"), model.num_heads, permuted)
        k = heads(model, x, t("attn_k"), bias("attn_k"), model.num_kv_heads, permuted)
        v = heads(model, x, t("attn_v"), bias("attn_v"), model.num_kv_heads, False)
        if model.architecture == "qwen3":
            q = rms_norm(q, t("attn_q_norm"), model.eps)
            k = rms_norm(k, t("attn_k_norm"), model.eps)
        q, k = rotate(q, cos, sin), rotate(k, cos, sin)
        k, v = np.repeat(k, group, axis=1), np.repeat(v, group, axis=1)
        scores = np.einsum("qhd,khd->hqk", q, k) / math.sqrt(model.head_dim) + future
        weights = np.exp(log_softmax(scores))
        attended = np.einsum("hqk,khd->qhd", weights, v).reshape(n, -1)
        h = h + attended @ t("attn_output").T

        x = rms_norm(h, t("ffn_norm"), model.eps)
        gate = x @ t("ffn_gate").T
        h = h + (gate / (1 + np.exp(-gate)) * (x @ t("ffn_up").T)) @ t("ffn_down").T

    head = model.optional("output.weight")
    head = model["token_embd.weight"] if head is None else head
    return log_softmax(rms_norm(h, model["output_norm.weight"], model.eps) @ head.T)


def versions():
    return {"python": platform.python_version(), "numpy": np.__version__, "gguf": version("gguf")}


def tiny():
    for path in sorted((HERE / "tiny").glob("*.json")):
        record = json.loads(path.read_text())
        logprobs = forward(Model(path.with_suffix(".gguf")), record["ids"])
        record["oracle"] = [[round(float(x), 6) for x in logprobs[p]] for p in record["positions"]]
        record["oracle_versions"] = versions()
        path.write_text(json.dumps(record, separators=(",", ":")) + "\n")
        if "llamacpp" in record:
            apart = np.abs(np.array(record["oracle"]) - np.array(record["llamacpp"]))
            print(f"{path.stem}: llama.cpp differs by mean {apart.mean():.6f}, max {apart.max():.6f}")


def default_model(path):
    model = Model(path)
    golden = json.loads((HERE / "smollm2_llamacpp.json").read_text())
    sequences = []
    for run in golden["sequences"]:
        ids = run["prompt_ids"] + run["output_ids"][:GENERATED]
        logprobs = forward(model, ids)
        top = np.argsort(-logprobs, axis=-1, kind="stable")[:, :TOP]
        sequences.append({
            "ids": ids,
            "top_ids": top.tolist(),
            "top_logprobs": [[round(float(logprobs[p, t]), 5) for t in row] for p, row in enumerate(top)],
        })
        print(f"{len(ids)} positions", flush=True)
    out = {"model": golden["model"], "versions": versions(), "sequences": sequences}
    (HERE / "smollm2_oracle.json").write_text(json.dumps(out, separators=(",", ":")) + "\n")


if __name__ == "__main__":
    if sys.argv[1:] == ["tiny"]:
        tiny()
    elif len(sys.argv) == 3 and sys.argv[1] == "default-model":
        default_model(sys.argv[2])
    else:
        sys.exit(__doc__)
