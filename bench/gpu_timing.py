"""How gpu_peers.py times: rings of operands that no cache holds, CUDA graphs, arms in turns, rows as `taper bench` writes them.

A *call* is a function that enqueues one unit of work on its own operands and returns the answer. An *arm* is one way to do
the work: a call for every slot of a ring. What is timed is the replay of a CUDA graph of at least `calls` calls, because a launch
from Python takes longer than many of these kernels; a sample is its time by events over its number of calls.

  cold  the calls walk the ring, which has at least four times the bytes of the second-level cache: operands come from memory
  warm  all calls have the operands of the first slot: what of them the cache holds comes from there

Arms take turns, sample by sample, and another one begins each round, so that a change of the machine's clocks meets all of them.
An arm that fails, or whose answer is not that of the first arm computed in float32, is left out with a line that begins with `absent:`.
On the processor (`--device cpu`) nothing is worth keeping; it runs the same code on a machine without a GPU.
"""
import contextlib
import dataclasses
import gc
import importlib
import json
import math
import time

import torch

# How far a row may read faster than memory was measured to, before it is void: as in crates/bench/src/run.rs.
TOLERANCE = 1.03
# Relative error, in the norm, that an arm may have: bfloat16 answers, and bfloat16 weights of the softmax.
ALLOWED_ERROR = 2e-2
# Cycles that the GPU waits before a sample, so that all of it is enqueued when it begins; about a tenth of a millisecond.
HEAD_START = 200_000


def quantile(samples, q):
    """Linear between neighbours, as crates/bench/src/statistics.rs."""
    ordered = sorted(samples)
    at = q * (len(ordered) - 1)
    low, high = ordered[math.floor(at)], ordered[math.ceil(at)]
    return low + (high - low) * (at - math.floor(at))


class Device:
    """What computes, and how a sample is taken there."""

    def __init__(self, name):
        # Some of torch's functions want to know which.
        self.name, self.is_cuda = "cuda:0" if name == "cuda" else name, name.startswith("cuda")
        if not self.is_cuda:
            self.machine, self.isa, self.l2_bytes, self.multiprocessors = "processor", "torch-cpu", 1 << 16, 1
            return
        if not torch.cuda.is_available():
            raise SystemExit("torch sees no GPU")
        about = torch.cuda.get_device_properties(self.name)
        torch.cuda.set_device(self.name)
        self.machine, self.isa = about.name, "cuda"
        self.l2_bytes, self.multiprocessors = about.L2_cache_size, about.multi_processor_count

    def free_bytes(self):
        return torch.cuda.mem_get_info()[0] if self.is_cuda else 1 << 30

    def replay_of(self, calls):
        """A function that does all `calls` once, as one graph where there are graphs."""
        if not self.is_cuda:
            return lambda: [call() for call in calls]
        # Libraries take handles, working memory and compiled kernels at their first call, outside of a capture.
        side = torch.cuda.Stream()
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            for call in calls[:2]:
                call()
        torch.cuda.current_stream().wait_stream(side)
        torch.cuda.synchronize()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            for call in calls:
                call()
        return graph.replay

    def seconds(self, work):
        """Time of `work` on the device."""
        if not self.is_cuda:
            begin = time.perf_counter()
            work()
            return time.perf_counter() - begin
        begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        torch.cuda._sleep(HEAD_START)
        begin.record()
        work()
        end.record()
        end.synchronize()
        return begin.elapsed_time(end) / 1e3

    def release(self):
        gc.collect()
        if self.is_cuda:
            torch.cuda.empty_cache()


@dataclasses.dataclass
class Arm:
    """One way to do the work of a case. `prepare` gives the calls, one for each slot; it may fail where a library is not here."""

    name: str
    prepare: object
    about: dict = dataclasses.field(default_factory=dict)
    # Whether the answer is compared.
    is_checked: bool = True


def microseconds(seconds):
    return seconds * 1e6


@dataclasses.dataclass
class Case:
    """What arms are measured on; `bytes` are those that one unit of work reads at least."""

    bench: str
    name: str
    params: dict
    bytes: float
    # The answer of slot 0, in float32, when there is something to compare with.
    reference: object = None
    # From seconds of a call to the figure of a row, and its unit.
    figure: object = microseconds
    unit: str = "us"
    units_per_call: float = 1.0


class Rows:
    """Rows of a run. They are written as they come, and once more at the end, when the read bandwidth was measured again."""

    def __init__(self, path, device, commit):
        self.path, self.device, self.commit = path, device, commit
        self.rows, self.ceiling = [], None
        self._write("w", [])

    def add(self, bench, case, params, samples, unit, bytes_each, gbps, is_cold=True):
        summary = {"median": quantile(samples, 0.5), "p10": quantile(samples, 0.1), "p90": quantile(samples, 0.9)}
        row = {"bench": bench, "case": case, "params": {**params, "place": "cold" if is_cold else "warm"}, **summary, "unit": unit,
               "bytes": bytes_each, "gbps": gbps, "share": None, "commit": self.commit, "machine": self.device.machine,
               "isa": self.device.isa, "threads": 1}
        self.rows.append(row)
        if bench == "bandwidth":
            self.ceiling = max(self.ceiling or 0.0, gbps)
        self._share(row)
        share = f", {100 * row['share']:.0f} %" if row["share"] is not None else ""
        speed = f", {gbps:.0f} GB/s" if gbps is not None else ""
        print(f"{bench}: {case}: {row['median']:.2f} {unit} ({row['p10']:.2f} to {row['p90']:.2f}){speed}{share}", flush=True)
        self._write("a", [row])

    def finish(self):
        """Shares of the best read bandwidth of the run."""
        for row in self.rows:
            self._share(row)
        self._write("w", self.rows)

    def _share(self, row):
        is_of_memory = row["params"]["place"] == "cold" and row["gbps"] is not None
        row["share"] = row["gbps"] / self.ceiling if is_of_memory and self.ceiling else None
        if row["bench"] not in ("bandwidth", "copy") and (row["share"] or 0.0) > TOLERANCE:
            row["void"] = True
        else:
            row.pop("void", None)

    def _write(self, mode, rows):
        if self.path:
            with open(self.path, mode, encoding="utf-8") as file:
                file.writelines(json.dumps(row) + "\n" for row in rows)


def absent(what, reason):
    """Says what is not measured. The report repeats these lines."""
    text = " ".join(str(reason).split()) or type(reason).__name__
    print(f"absent: {what}: {text[:240]}", flush=True)


@dataclasses.dataclass
class Effort:
    """How long one case is timed."""

    rounds: int
    calls: int
    deadline: float = math.inf

    def is_over(self, what):
        is_over = time.monotonic() > self.deadline
        if is_over:
            absent(what, "no time left")
        return is_over


def error_of(answer, reference):
    """Relative error in the norm; infinite for what is not finite."""
    difference = (answer.float().flatten() - reference.float().flatten()).norm()
    error = (difference / reference.float().norm()).item()
    return error if math.isfinite(error) else math.inf


def replays(device, arms, case, effort):
    """Per arm its replays by place, each with its number of calls; arms that fail or are wrong are left out."""
    ready = {}
    for arm in arms:
        try:
            calls = arm.prepare()
            error = None
            if case.reference is not None and arm.is_checked:
                error = error_of(calls[0](), case.reference)
                if error > ALLOWED_ERROR:
                    raise RuntimeError(f"the answer is wrong by {error:.1e}")
            count = max(effort.calls, len(calls))
            in_turns = [calls[i % len(calls)] for i in range(count)]
            places = {"cold": (device.replay_of(in_turns), count)}
            if device.is_cuda:
                places["warm"] = (device.replay_of([calls[0]] * effort.calls), effort.calls)
            # Graphs know addresses alone: the operands must live as long as they.
            ready[arm.name] = (arm, places, calls, error)
        except Exception as failure:  # whatever a library says of a shape or a machine that it does not know
            absent(f"{case.name} {arm.name}", failure)
    return ready


def measure(device, rows, case, arms, effort):
    """The rows of a case, cold and warm; arms in turns."""
    if effort.is_over(case.name):
        return
    ready = replays(device, arms, case, effort)
    names = list(ready)
    for place in ("cold", "warm"):
        of_place = [name for name in names if place in ready[name][1]]
        samples = {name: [] for name in of_place}
        for turn in range(effort.rounds + 1):
            for index in range(len(of_place)):
                name = of_place[(index + turn) % len(of_place)]
                replay, count = ready[name][1][place]
                seconds = device.seconds(replay) / count
                if turn:  # the first round warms up
                    samples[name].append(seconds)
        for name, seconds in samples.items():
            arm, _, calls, error = ready[name]
            about = {"arm": name, **case.params, **arm.about, "slots": len(calls) if place == "cold" else 1,
                     "us_per_call": quantile(seconds, 0.5) * 1e6, "samples": len(seconds), "calls": ready[name][1][place][1]}
            if error is not None:
                about["error"] = error
            figures = [case.figure(each) for each in seconds]
            gbps = case.bytes * case.units_per_call / quantile(seconds, 0.5) / 1e9
            label = f"{case.name} {name}" + ("" if place == "cold" else ", warm")
            rows.add(case.bench, label, about, figures, case.unit, case.bytes, gbps, place == "cold")
    ready.clear()
    device.release()


def ring_len(device, slot_bytes, ring_bytes):
    """Slots of a ring that the second-level cache does not hold, at least two."""
    wanted = max(ring_bytes, 4 * device.l2_bytes)
    slots = max(2, math.ceil(wanted / slot_bytes))
    if slots * slot_bytes > 0.8 * device.free_bytes():
        raise MemoryError(f"{slots} x {slot_bytes / 2**20:.0f} MiB are more than is free")
    return slots


def triton_reads(device, source):
    if not device.is_cuda:
        raise RuntimeError("not on the processor")
    return importlib.import_module("gpu_reads").reads(source)


def read_bandwidth(device, rows, when, mib, effort):
    """Rows of what plain loads read, the best of several ways being the ceiling that shares are of; and of a copy, which reads
    half of the bytes that it counts."""
    if mib == 0:
        return
    num_bytes = min(mib << 20, int(0.25 * device.free_bytes()))
    words = num_bytes // 4 // 16384 * 16384
    source = torch.randint(-2**31, 2**31 - 1, (words,), dtype=torch.int32, device=device.name)
    as_floats = torch.rand(words, device=device.name)
    target = torch.empty_like(source)
    ways = {
        "torch sum": lambda: lambda: as_floats.sum(),
        "torch amax": lambda: lambda: source.amax(),
        "triton": lambda: triton_reads(device, source),
        "copy, read and written": lambda: lambda: target.copy_(source),
    }
    best = {}
    for name, prepare in ways.items():
        try:
            call = prepare()
            call()
            replay = device.replay_of([call] * 2)
            seconds = [device.seconds(replay) / 2 for _ in range(effort.rounds + 1)][1:]
        except Exception as failure:
            absent(f"read bandwidth by {name}", failure)
            continue
        both = 2 if name.startswith("copy") else 1
        best[name] = [both * 4 * words / each / 1e9 for each in seconds]
    for name, speeds in best.items():
        # A copy also writes: it is no ceiling of what reads.
        bench = "copy" if name.startswith("copy") else "bandwidth"
        rows.add(bench, f"{when}: {name}", {"arm": name}, speeds, "GB/s", 4 * words, quantile(speeds, 0.5))


@contextlib.contextmanager
def run(device, rows, mib, effort):
    """The read bandwidth, what is measured in the context, and the read bandwidth again."""
    read_bandwidth(device, rows, "before", mib, effort)
    device.release()
    try:
        yield
        read_bandwidth(device, rows, "after", mib, effort)
    finally:
        rows.finish()
