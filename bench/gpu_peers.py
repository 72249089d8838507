#!/usr/bin/env python3
"""Times other programs' kernels on a GPU, on the shapes that `taper bench` is given, in rows like its own.

    bench/gpu_peers.py bandwidth|gemm|attention|softmax|model [--json FILE] [shapes as for taper bench]

  gemm       x [M, K] times bfloat16 weights [N, K]: cuBLAS and cuBLASLt as torch calls them, tinygemm of flashinfer, and with
             --compile what torch.compile finds by trying (Triton's templates among it)
  attention  one query per sequence over bfloat16 keys and values: torch's flash, cuDNN, memory-efficient and math backends of
             scaled_dot_product_attention; flashinfer's decode kernels on pages of 64; flash-attention 2 and 3; flex attention
             with --compile
  softmax    float32 rows: torch, and with --compile what torch.compile makes of it
  model      a Llama of the shape of --model FILE.gguf, or of 1B and 8B: gpu_models.py has the loops

A library that is not here, or that cannot compute a shape, is a line beginning with `absent:`. gpu_timing.py says how is timed.
Weights, keys and values are random, never zeros: those run faster.
"""
import argparse
import importlib
import re
import sys
import time

try:
    import torch
except ImportError as error:
    raise SystemExit(f"torch is needed: {error}") from error

import gpu_models
from gpu_timing import Arm, Case, Device, Effort, Rows, measure, read_bandwidth, ring_len, run

BF16 = torch.bfloat16
PAGE = 64


def normal(device, *shape, scale=1.0, dtype=BF16):
    return torch.randn(*shape, dtype=torch.float32 if dtype == torch.float32 else BF16, device=device.name) * scale


def wanted(args, arms):
    return [arm for arm in arms if not args.arms or any(part in arm.name for part in args.arms)]


# Matrix products.

def blas_arm(name, x, ring, out):
    """torch.mm by one of cuBLAS's interfaces, which is chosen when the call is captured."""
    def prepare():
        def call(w):
            torch.backends.cuda.preferred_blas_library(name)
            return torch.mm(x, w.t(), out=out)
        return [lambda w=w: call(w) for w in ring]
    return Arm(name, prepare)


def tinygemm(x, ring):
    flashinfer = importlib.import_module("flashinfer")
    product = getattr(flashinfer, "tinygemm_bf16", None) or importlib.import_module("flashinfer.gemm").tinygemm_bf16
    out = torch.empty(x.shape[0], ring[0].shape[0], dtype=BF16, device=x.device)
    bias = torch.zeros(ring[0].shape[0], dtype=BF16, device=x.device)

    def call(w):
        # Not use_pdl: it waits for ever unless all that precedes on the stream has it as well.
        product(x, w, out, bias)
        return out
    return [lambda w=w: call(w) for w in ring]


def compiled(function, operands, device):
    """Calls of `function` as torch.compile makes it, tuned for these shapes."""
    torch._dynamo.reset()
    if device.is_cuda:
        torch.backends.cuda.preferred_blas_library("default")
    mode = "max-autotune-no-cudagraphs" if device.is_cuda else "default"
    fast = torch.compile(function, mode=mode, dynamic=False, fullgraph=True)
    fast(*operands[0])
    return [lambda each=each: fast(*each) for each in operands]


def gemm(device, rows, args, effort):
    for n, k in args.shape:
        slots = ring_len(device, 2 * n * k, args.ring_mib << 20)
        ring = [normal(device, n, k, scale=k**-0.5) for _ in range(slots)]
        for m in args.rows:
            x = normal(device, m, k)
            out = torch.empty(m, n, dtype=BF16, device=device.name)
            params = {"type": "BF16", "n": n, "k": k, "m": m, "ring_bytes": slots * 2 * n * k}
            gflop = 2.0 * m * n * k / 1e9
            case = Case("gemm", f"BF16 {n}x{k} M={m}", params, 2.0 * n * k, x.float() @ ring[0].float().t(),
                        figure=lambda seconds, gflop=gflop: gflop / seconds, unit="GFLOP/s")
            blas = ["cublas", "cublaslt"] if device.is_cuda else ["default"]
            arms = [blas_arm(name, x, ring, out) for name in blas]
            arms.append(Arm("tinygemm", lambda x=x, ring=ring: tinygemm(x, ring)))
            if args.compile:
                linear = torch.nn.functional.linear
                operands = [(x, w) for w in ring]
                arms.append(Arm("torch.compile", lambda operands=operands: compiled(linear, operands, device)))
            measure(device, rows, case, wanted(args, arms), effort)
        del ring
        device.release()


# Attention of one generated token.

class Kv:
    """A ring of keys and values [batch, kv_heads, len, dim], and the queries of each slot [batch, heads, 1, dim]."""

    def __init__(self, device, heads, batch, length, ring_bytes):
        self.device, (self.heads, self.kv_heads, self.dim) = device, heads
        self.batch, self.len = batch, length
        self.bytes = 2 * 2 * batch * length * self.kv_heads * self.dim
        self.slots = ring_len(device, self.bytes, ring_bytes)
        shape = (batch, self.kv_heads, length, self.dim)
        self.keys = [normal(device, *shape) for _ in range(self.slots)]
        self.values = [normal(device, *shape) for _ in range(self.slots)]
        self.queries = [normal(device, batch, self.heads, 1, self.dim) for _ in range(self.slots)]

    def reference(self):
        """The answer of the first slot in float32, a sequence at a time: [batch, heads, dim]."""
        group = self.heads // self.kv_heads
        answers = []
        for q, k, v in zip(self.queries[0], self.keys[0], self.values[0]):
            scores = q.float().view(self.kv_heads, group, self.dim) @ k.float().transpose(1, 2) * self.dim**-0.5
            answers.append((scores.softmax(-1) @ v.float()).view(self.heads, self.dim))
        return torch.stack(answers)


def sdpa(kv, backend):
    from torch.nn.attention import SDPBackend, sdpa_kernel
    attend = torch.nn.functional.scaled_dot_product_attention
    # One backend alone is allowed, so what cannot run is an error and not silently another.
    kernel = getattr(SDPBackend, backend)

    def call(q, k, v):
        with sdpa_kernel([kernel]):
            return attend(q, k, v, enable_gqa=True)
    return [lambda each=each: call(*each) for each in zip(kv.queries, kv.keys, kv.values)]


def flashinfer_decode(kv, on_tensor_cores):
    flashinfer = importlib.import_module("flashinfer")
    pages_each = -(-kv.len // PAGE)
    device = kv.device.name
    counts = torch.arange(kv.batch + 1, dtype=torch.int32) * pages_each
    last = torch.full((kv.batch,), kv.len - (pages_each - 1) * PAGE, dtype=torch.int32)
    pages = torch.arange(kv.batch * pages_each, dtype=torch.int32)
    workspace = torch.empty(256 << 20, dtype=torch.uint8, device=device)
    wrapper = flashinfer.BatchDecodeWithPagedKVCacheWrapper(workspace, "HND", use_tensor_cores=on_tensor_cores)
    wrapper.plan(counts.to(device), pages.to(device), last.to(device), kv.heads, kv.kv_heads, kv.dim, PAGE, q_data_type=BF16,
                 kv_data_type=BF16)

    def paged(tensor):
        tensor = torch.nn.functional.pad(tensor, (0, 0, 0, pages_each * PAGE - kv.len))
        tensor = tensor.view(kv.batch, kv.kv_heads, pages_each, PAGE, kv.dim).transpose(1, 2)
        return tensor.reshape(kv.batch * pages_each, kv.kv_heads, PAGE, kv.dim).contiguous()

    operands = [(q.squeeze(2), (paged(k), paged(v))) for q, k, v in zip(kv.queries, kv.keys, kv.values)]
    return [lambda q=q, pair=pair: wrapper.run(q, pair) for q, pair in operands]


def flash_attention(kv, module):
    """flash_attn_with_kvcache of flash-attention 2 (`flash_attn`) or 3 (`flash_attn_interface`): [batch, len, heads, dim]."""
    attend = importlib.import_module(module).flash_attn_with_kvcache
    lengths = torch.full((kv.batch,), kv.len, dtype=torch.int32, device=kv.device.name)
    swapped = [[tensor.transpose(1, 2).contiguous() for tensor in each] for each in zip(kv.queries, kv.keys, kv.values)]

    def call(q, k, v):
        out = attend(q, k, v, cache_seqlens=lengths, causal=True)
        return out[0] if isinstance(out, tuple) else out
    return [lambda each=each: call(*each) for each in swapped]


def flex(kv):
    from torch.nn.attention.flex_attention import flex_attention
    torch._dynamo.reset()
    attend = torch.compile(flex_attention, dynamic=False)
    return [lambda each=each: attend(*each, enable_gqa=True) for each in zip(kv.queries, kv.keys, kv.values)]


def attention_arms(kv, args):
    backends = {"sdpa-flash": "FLASH_ATTENTION", "sdpa-cudnn": "CUDNN_ATTENTION", "sdpa-efficient": "EFFICIENT_ATTENTION"}
    arms = [Arm(name, lambda backend=backend: sdpa(kv, backend)) for name, backend in backends.items()]
    if kv.batch * kv.len <= args.math_keys:
        arms.append(Arm("sdpa-math", lambda: sdpa(kv, "MATH")))
    arms.append(Arm("flashinfer", lambda: flashinfer_decode(kv, False)))
    arms.append(Arm("flashinfer-mma", lambda: flashinfer_decode(kv, True)))
    arms.append(Arm("flash-attn-2", lambda: flash_attention(kv, "flash_attn")))
    arms.append(Arm("flash-attn-3", lambda: flash_attention(kv, "flash_attn_interface")))
    if args.compile:
        arms.append(Arm("flex", lambda: flex(kv)))
    return wanted(args, arms)


def attention(device, rows, args, effort):
    for heads in args.heads:
        for batch in args.batch:
            for length in args.keys:
                name = f"{heads[0]}/{heads[1]}x{heads[2]}"
                if effort.is_over(f"{name} b{batch}@{length}"):
                    continue
                kv = Kv(device, heads, batch, length, args.ring_mib << 20)
                params = {"heads": name, "batch": batch, "keys": length, "rows": 1, "kv": "BF16", "ring_bytes": kv.slots * kv.bytes}
                case = Case("attention", f"{name} b{batch}@{length}", params, float(kv.bytes), kv.reference())
                measure(device, rows, case, attention_arms(kv, args), effort)
                del kv
                device.release()


# Softmax of rows.

def softmax(device, rows, args, effort):
    for power in args.powers:
        length = 1 << power
        for num_rows in sorted({1, max(1, args.elements // length)}):
            num_bytes = 8 * length * num_rows
            slots = ring_len(device, num_bytes, args.ring_mib << 20)
            ring = [normal(device, num_rows, length, scale=4.0, dtype=torch.float32) for _ in range(slots)]
            outs = [torch.empty_like(x) for x in ring]

            def in_place(ring=ring, outs=outs):
                return [lambda x=x, out=out: torch.softmax(x, -1, out=out) for x, out in zip(ring, outs)]
            arms = [Arm("torch", in_place)]
            if args.compile:
                operands = [(x,) for x in ring]
                arms.append(Arm("torch.compile", lambda operands=operands: compiled(lambda x: torch.softmax(x, -1), operands, device)))
            params = {"len": length, "rows_per_call": num_rows, "ring_bytes": slots * num_bytes}
            case = Case("softmax", f"{num_rows} rows of {length}", params, 8.0 * length, ring[0].double().softmax(-1),
                        figure=lambda seconds, n=num_rows: seconds * 1e6 / n, units_per_call=num_rows)
            measure(device, rows, case, wanted(args, arms), effort)
            del ring, outs
            device.release()


# The command line: shapes are written as `taper bench` reads them.

def numbers(text):
    return [int(part) for part in text.split(",")]


def parsed(pattern, what):
    def parse(text):
        found = [re.fullmatch(pattern, part) for part in text.split(",")]
        if not all(found):
            raise argparse.ArgumentTypeError(f"expected {what}")
        return [tuple(int(number) for number in match.groups()) for match in found]
    return parse


def command_line():
    common = argparse.ArgumentParser(add_help=False)
    common.add_argument("--device", default="cuda", help="cuda, cuda:N or cpu")
    common.add_argument("--json", help="file to which rows are added as they come")
    common.add_argument("--commit", default="unknown", help="what rows have as their commit")
    common.add_argument("--rounds", type=int, default=7, help="samples of each arm")
    common.add_argument("--calls", type=int, default=100, help="calls of a sample, at least")
    common.add_argument("--ring-mib", type=int, default=0, help="least size of a ring; four times the second-level cache anyway")
    common.add_argument("--bandwidth-mib", type=int, default=4096, help="memory to read for the read bandwidth; 0 leaves it out")
    common.add_argument("--seconds", type=float, default=1e9, help="cases that would begin later are left out")
    common.add_argument("--compile", action="store_true", help="arms that torch.compile tunes, too: half a minute a shape")
    common.add_argument("--arms", type=lambda text: text.split(","), default=[], help="only arms with one of these in their name")
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    what = parser.add_subparsers(dest="what", required=True)
    what.add_parser("bandwidth", parents=[common])
    of_gemm = what.add_parser("gemm", parents=[common])
    of_gemm.add_argument("--shape", type=parsed(r"(\d+)x(\d+)", "NxK"), default=[(4096, 4096)])
    of_gemm.add_argument("--rows", type=numbers, default=[1, 2, 4, 8, 16, 32, 64])
    of_attention = what.add_parser("attention", parents=[common])
    of_attention.add_argument("--heads", type=parsed(r"(\d+)/(\d+)x(\d+)", "HEADS/KV_HEADSxELEMENTS"), default=[(32, 8, 128)])
    of_attention.add_argument("--batch", type=numbers, default=[1])
    of_attention.add_argument("--keys", type=numbers, default=[1024, 4096, 32768])
    of_attention.add_argument("--math-keys", type=int, default=65536, help="most keys of a batch that the math backend is asked for")
    of_softmax = what.add_parser("softmax", parents=[common])
    of_softmax.add_argument("--powers", type=numbers, default=[10, 12, 14, 17, 20])
    of_softmax.add_argument("--elements", type=int, default=1 << 22, help="elements of a call of many rows")
    of_model = what.add_parser("model", parents=[common])
    gpu_models.add_arguments(of_model)
    return parser.parse_args()


def main():
    args = command_line()
    started = time.monotonic()
    device = Device(args.device)
    torch.manual_seed(1)
    rows = Rows(args.json, device, args.commit)
    effort = Effort(args.rounds, args.calls, started + args.seconds)
    print(f"torch {torch.__version__}, {device.machine}, {device.multiprocessors} multiprocessors, L2 {device.l2_bytes / 2**20:.0f} MiB")
    if args.what == "bandwidth":
        read_bandwidth(device, rows, "alone", args.bandwidth_mib, effort)
        rows.finish()
    else:
        measured = {"gemm": gemm, "attention": attention, "softmax": softmax, "model": gpu_models.measure_models}[args.what]
        with run(device, rows, args.bandwidth_mib, effort), torch.inference_mode():
            measured(device, rows, args, effort)
    if not any(row["bench"] == args.what for row in rows.rows):
        sys.exit("nothing was measured")


if __name__ == "__main__":
    main()
