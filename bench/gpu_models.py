"""Whole models for gpu_peers.py: decode loops of a Llama with random bfloat16 weights, by torch alone and by transformers.

  loop       a static cache and one CUDA graph per step, kernels as torch runs them one by one
  compile    the same with each layer through torch.compile, as gpt-fast does it: products of one row become Triton reductions
  compile, flash   the same, attending to all of the cache without a mask, so that a flash kernel can: as much work, other text
  transformers eager, transformers static   `generate` with a growing cache, and with a static one, which it compiles

A step is the token before, its layers, logits, and the most likely token next. Only the speed is right: weights are random, so are
the keys of the depth. A file's shape is taken from its header; weights of the loops are bfloat16 whatever type the file has.
"""
import dataclasses
import pathlib
import re
import struct
import time

import torch
from gpu_timing import Arm, absent, quantile
from torch.nn import functional

BATCH_DEPTH, BATCH_TOKENS = 32, 48


@dataclasses.dataclass(frozen=True)
class Shape:
    name: str
    hidden: int
    layers: int
    heads: int
    kv_heads: int
    dim: int
    intermediate: int
    vocabulary: int
    is_tied: bool = False

    def weight_bytes(self):
        """Of the matrices that a step reads."""
        attention = self.hidden * self.dim * (2 * self.heads + 2 * self.kv_heads)
        return 2 * (self.layers * (attention + 3 * self.hidden * self.intermediate) + self.hidden * self.vocabulary)

    def kv_bytes(self):
        """Of a position."""
        return 2 * 2 * self.layers * self.kv_heads * self.dim


KNOWN = {
    "1b": Shape("llama-1b", 2048, 16, 32, 8, 64, 8192, 128256, True),
    "8b": Shape("llama-8b", 4096, 32, 32, 8, 128, 14336, 128256),
    "tiny": Shape("llama-tiny", 64, 2, 4, 2, 16, 128, 256),
}


def gguf_shape(path):
    """The shape in the header of a GGUF file."""
    sizes = {0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 7: "?", 10: "Q", 11: "q", 12: "d"}
    with open(path, "rb") as file:
        def number(code):
            return struct.unpack("<" + code, file.read(struct.calcsize(code)))[0]

        def value(kind):
            if kind == 8:
                return file.read(number("Q")).decode(errors="replace")
            if kind == 9:
                of, count = number("I"), number("Q")
                if of in (8, 9):
                    for _ in range(count):
                        value(of)
                else:
                    file.seek(count * struct.calcsize(sizes[of]), 1)
                return count
            return number(sizes[kind])

        if file.read(4) != b"GGUF" or number("I") not in (2, 3):
            raise ValueError(f"{path} is no GGUF file of version 2 or 3")
        num_tensors, num_values = number("Q"), number("Q")
        fields = {}
        for _ in range(num_values):
            key = value(8)
            fields[key] = value(number("I"))
        tensors = {}
        for _ in range(num_tensors):
            name, rank = value(8), number("I")
            tensors[name] = [number("Q") for _ in range(rank)]
            number("I"), number("Q")
    of = lambda key: fields.get(f"{fields['general.architecture']}.{key}")
    heads, hidden = of("attention.head_count"), of("embedding_length")
    if of("expert_count"):
        raise ValueError("mixtures of experts are not written here")
    return Shape(pathlib.Path(path).stem, hidden, of("block_count"), heads, of("attention.head_count_kv") or heads,
                 of("attention.key_length") or hidden // heads, of("feed_forward_length"), tensors["token_embd.weight"][1],
                 "output.weight" not in tensors)


def add_arguments(parser):
    parser.add_argument("--model", help="a GGUF file that has the shape; else --shapes")
    parser.add_argument("--shapes", default="1b,8b", help="which of 1b, 8b, tiny, without --model")
    parser.add_argument("--case", action="append", help="tgN, bN, with @DEPTH as for taper bench model [tg64@1024, b8@1024, b32@1024]")
    parser.add_argument("--repeat", type=int, default=5, help="samples of each arm")


def read_case(text):
    """(kind, sequences, tokens, depth) of a case's name; None for prompts, which are not measured here."""
    match = re.fullmatch(r"(tg|b)(\d+)(?:@(\d+))?", text)
    if not match:
        return None
    kind, count, depth = match[1], int(match[2]), match[3]
    if kind == "tg":
        return "decode", 1, count, int(depth or 0)
    return "batch", count, BATCH_TOKENS, int(BATCH_DEPTH if depth is None else depth)


# The loop.

def rms_norm(x, weight):
    wide = x.float()
    return (wide * torch.rsqrt(wide.square().mean(-1, keepdim=True) + 1e-5)).to(x.dtype) * weight


def turned(x, cos, sin):
    """x [batch, heads, dim], the halves of a head turned against each other."""
    first, second = x.float().chunk(2, -1)
    return torch.cat((first * cos - second * sin, second * cos + first * sin), -1).to(x.dtype)


def layer_step(h, weights, keys, values, position, cos, sin, mask, shape):
    """One layer for one token of each sequence: h [batch, hidden], keys and values [batch, kv_heads, len, dim], changed in place."""
    norm, qkv, out, ffn_norm, gate_up, down = weights
    heads, kv_heads, dim = shape
    batch = h.shape[0]
    q, k, v = functional.linear(rms_norm(h, norm), qkv).split([heads * dim, kv_heads * dim, kv_heads * dim], -1)
    q, k = turned(q.view(batch, heads, dim), cos, sin), turned(k.view(batch, kv_heads, dim), cos, sin)
    keys.index_copy_(2, position, k.unsqueeze(2))
    values.index_copy_(2, position, v.view(batch, kv_heads, 1, dim))
    seen = functional.scaled_dot_product_attention(q.unsqueeze(2), keys, values, attn_mask=mask, enable_gqa=heads != kv_heads)
    h = h + functional.linear(seen.reshape(batch, heads * dim), out)
    gate, up = functional.linear(rms_norm(h, ffn_norm), gate_up).chunk(2, -1)
    return h + functional.linear(functional.silu(gate) * up, down)


class Weights:
    """Random ones, shared by the arms of a model."""

    def __init__(self, device, shape):
        def matrix(n, k):
            return torch.randn(n, k, dtype=torch.bfloat16, device=device.name) * k**-0.5
        ones = torch.ones(shape.hidden, dtype=torch.bfloat16, device=device.name)
        width, kv_width = shape.heads * shape.dim, shape.kv_heads * shape.dim
        self.embedding = matrix(shape.vocabulary, shape.hidden)
        self.head = self.embedding if shape.is_tied else matrix(shape.vocabulary, shape.hidden)
        self.norm = ones
        self.layers = [(ones, matrix(width + 2 * kv_width, shape.hidden), matrix(shape.hidden, width), ones,
                        matrix(2 * shape.intermediate, shape.hidden), matrix(shape.hidden, shape.intermediate))
                       for _ in range(shape.layers)]


class Loop:
    """Decoding of `batch` sequences with `depth` random keys each."""

    def __init__(self, device, shape, weights, batch, depth, tokens, layer=layer_step, is_masked=True):
        self.shape, self.weights, self.layer, self.is_masked = shape, weights, layer, is_masked
        self.depth, length = depth, -(-(depth + tokens + 1) // 64) * 64

        def cache():
            return torch.randn(batch, shape.kv_heads, length, shape.dim, dtype=torch.bfloat16, device=device.name)
        self.caches = [(cache(), cache()) for _ in range(shape.layers)]
        self.tokens = torch.zeros(batch, dtype=torch.int64, device=device.name)
        self.position = torch.full((1,), depth, dtype=torch.int64, device=device.name)
        self.places = torch.arange(length, device=device.name)
        frequencies = 500000.0 ** (-torch.arange(0, shape.dim, 2, device=device.name).float() / shape.dim)
        angles = torch.outer(self.places.float(), frequencies)
        self.cos, self.sin = angles.cos(), angles.sin()

    def logits(self):
        cos, sin = self.cos[self.position], self.sin[self.position]
        mask = (self.places <= self.position).view(1, 1, 1, -1) if self.is_masked else None
        h = functional.embedding(self.tokens, self.weights.embedding)
        heads = self.shape.heads, self.shape.kv_heads, self.shape.dim
        for weights, (keys, values) in zip(self.weights.layers, self.caches):
            h = self.layer(h, weights, keys, values, self.position, cos, sin, mask, heads)
        return functional.linear(rms_norm(h, self.weights.norm), self.weights.head)

    def step(self):
        self.tokens.copy_(self.logits().argmax(-1))
        self.position.add_(1)


def loop_sampler(device, shape, weights, case, is_compiled=False, is_masked=True):
    """Seconds of a step, measured over all tokens of a case."""
    _, batch, tokens, depth = case
    layer = layer_step
    if is_compiled:
        # A variant for each shape, batch and mask; nothing is reset, so that kernels live as long as the graphs that have them.
        torch._dynamo.config.recompile_limit = 64
        # What makes products with one row reductions that Triton writes, as gpt-fast sets it.
        torch._inductor.config.coordinate_descent_tuning = device.is_cuda
        layer = torch.compile(layer_step, dynamic=False, fullgraph=True)
    loop = Loop(device, shape, weights, batch, depth, tokens, layer, is_masked)
    replay = device.replay_of([loop.step])

    def sample():
        loop.position.fill_(depth)
        return device.seconds(lambda: [replay() for _ in range(tokens)]) / tokens
    return sample


# transformers.

class Clock:
    """What generate takes for a printer of its tokens, and is told of each as it is there: a prompt first."""

    def __init__(self):
        self.times = []

    def put(self, _):
        self.times.append(time.perf_counter())

    def end(self):
        pass


class Generator:
    """transformers' model of a shape, made once and used by both of its arms."""

    def __init__(self, device, shape):
        self.device, self.shape, self.model = device, shape, None

    def make(self):
        from transformers import LlamaConfig, LlamaForCausalLM
        shape = self.shape
        config = LlamaConfig(
            vocab_size=shape.vocabulary, hidden_size=shape.hidden, intermediate_size=shape.intermediate,
            num_hidden_layers=shape.layers, num_attention_heads=shape.heads, num_key_value_heads=shape.kv_heads, head_dim=shape.dim,
            max_position_embeddings=1 << 17, tie_word_embeddings=shape.is_tied, attn_implementation="sdpa",
            bos_token_id=None, eos_token_id=None, pad_token_id=None)
        before = torch.get_default_dtype()
        torch.set_default_dtype(torch.bfloat16)
        try:
            with torch.device(self.device.name):
                self.model = LlamaForCausalLM(config).eval()
        finally:
            torch.set_default_dtype(before)

    def sampler(self, case, cache):
        """Seconds of a step of generate, between its first token and its last."""
        if self.model is None:
            self.make()
        _, batch, tokens, depth = case
        prompt = torch.randint(0, self.shape.vocabulary, (batch, max(depth, 1)), device=self.device.name)
        about = {"cache_implementation": cache} if cache else {}

        def sample():
            clock = Clock()
            self.model.generate(input_ids=prompt, attention_mask=torch.ones_like(prompt), max_new_tokens=tokens + 1,
                                min_new_tokens=tokens + 1, do_sample=False, streamer=clock, pad_token_id=0, **about)
            return (clock.times[-1] - clock.times[1]) / (len(clock.times) - 2)
        sample()
        return sample


def arms_of(device, shape, weights, generator, case):
    """Each with a function that prepares a sampler; those of transformers for one sequence, where it is to be compared with."""
    arms = [Arm("loop", lambda: loop_sampler(device, shape, weights, case)),
            Arm("compile, flash", lambda: loop_sampler(device, shape, weights, case, True, False)),
            Arm("compile", lambda: loop_sampler(device, shape, weights, case, True))]
    if case[0] == "decode":
        arms += [Arm("transformers eager", lambda: generator.sampler(case, None)),
                 Arm("transformers static", lambda: generator.sampler(case, "static"))]
    return arms


def measure_case(device, rows, shape, name, case, arms, args, effort):
    kind, batch, tokens, depth = case
    samplers = {}
    for arm in arms:
        what = f"{shape.name} {name} {arm.name}"
        if (args.arms and not any(part in arm.name for part in args.arms)) or effort.is_over(what):
            continue
        try:
            samplers[arm.name] = arm.prepare()
            samplers[arm.name]()
        except Exception as failure:  # whatever a compiler or a library says
            samplers.pop(arm.name, None)
            absent(what, failure)
    order, samples = list(samplers), {arm: [] for arm in samplers}
    for turn in range(args.repeat):
        for index in range(len(order)):
            arm = order[(index + turn) % len(order)]
            samples[arm].append(samplers[arm]())
    bytes_each = shape.weight_bytes() / batch + shape.kv_bytes() * (depth + tokens / 2)
    for arm, seconds in samples.items():
        rates = [batch / each for each in seconds]
        params = {"model": shape.name, "network": arm, "arm": arm, "kind": kind, "n": batch if kind == "batch" else tokens, "depth": depth,
                  "keys": "random" if depth else "none", "weights": "BF16", "us_per_call": quantile(seconds, 0.5) * 1e6, "samples": rates}
        rows.add("model", f"{shape.name} {name}, {arm}", params, rates, "tokens/s", bytes_each, bytes_each * quantile(rates, 0.5) / 1e9)


def measure_models(device, rows, args, effort):
    shapes = [gguf_shape(args.model)] if args.model else [KNOWN[name] for name in args.shapes.split(",")]
    ready = []
    for shape in shapes:
        # Twice: the loops' and those of transformers.
        if 2 * shape.weight_bytes() > 0.8 * device.free_bytes():
            absent(shape.name, f"{2 * shape.weight_bytes() / 2**30:.0f} GiB are more than is free")
            continue
        ready.append((shape, Weights(device, shape), Generator(device, shape)))
    # All models with a case before the next case, so that time that runs out takes the last cases of all.
    for name in args.case or ["tg64@1024", "b8@1024", "b32@1024"]:
        case = read_case(name)
        if case is None:
            absent(name, "no case that is generated token by token")
            continue
        for shape, weights, generator in ready:
            arms = arms_of(device, shape, weights, generator, case)
            measure_case(device, rows, shape, name, case, arms, args, effort)
            device.release()
