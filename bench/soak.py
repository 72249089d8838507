#!/usr/bin/env python3
"""Half an hour of everything at once, and what must be as before when it is over.

    bench/soak.py --model MODEL.gguf [--minutes 30] [--out SUMMARY.json]

Starts `taper serve` with a KV cache too small for its batch (so that sequences are preempted), a short queue (so that some
requests get 429), a cache folder and guessing from the text, and sends it the requests of `soak_requests.py` from clients
that come and go: long and short prompts, shared prefixes, several choices, forms, stop strings, bad requests. Some clients
leave: before the answer begins, in the middle of it, or in the middle of their own request. Exit status 1 unless, at the end,

  answers     every request got the status that it should (429, or 503 with Retry-After, where the server is busy), within
              its deadline, and every whole answer kept its promise (form, stop string, count of choices, of log-probabilities)
  references  the same four requests (greedy, cached prefix with log-probabilities, seeded, JSON), asked all the time, were
              answered as they were before the load began
  blocks      nothing runs or waits, and no block of the KV cache is held
  memory      RssAnon (VmRSS without the model's file) grows by less than 1 % in ten minutes, or in all the time there is if that
              is less, by the median slope over the second half of the run; the first is for buffers and caches to fill. The
              leak that would show is told in bytes per request: the shorter the run, the larger. The C library's allocator
              takes its time to fill an arena per thread; with MALLOC_ARENA_MAX=1 in the environment it has one, and a run of
              minutes tells a leak from that
  handles     not more open files than before the load, and no more than two more threads
  log         no line of level ERROR, and none of a panic; SIGTERM ends the server with status 0
  coverage    the run had what it is for: preemptions, cached tokens, right guesses, clients that left, every kind of request
"""
import argparse
import collections
import itertools
import json
import os
import pathlib
import random
import re
import shlex
import statistics
import sys
import tempfile
import threading
import time

from serving import build_of, origin, servers
from soak_client import Complaint, Exchange, perform
from soak_requests import KINDS, REFERENCES, Request, bad, draw

METRIC = re.compile(r'^(\S+?)\{engine="0",model_name="[^"]*"(?:,(?:finished_reason|source)="(\w+)")?\} (\S+)$', re.MULTILINE)
# Complaints that are printed at once; all are in the summary.
MOST_SHOWN = 10


class Record:
    """What the clients saw; they are threads."""

    def __init__(self):
        self.lock = threading.Lock()
        self.outcomes = collections.defaultdict(collections.Counter)
        self.seconds = collections.defaultdict(list)
        self.complaints = []
        self.is_over = threading.Event()

    def note(self, kind, outcome, seconds=None):
        with self.lock:
            self.outcomes[kind][outcome] += 1
            if seconds is not None:
                self.seconds[kind].append(seconds)

    def complain(self, kind, what):
        line = f"{kind}: {what}"[:500]
        with self.lock:
            self.complaints.append(line)
            count = len(self.complaints)
        if count <= MOST_SHOWN:
            print(f"complaint {count}: {line}\n", end="", file=sys.stderr, flush=True)


def client(number, port, record, args):
    """Comes, asks some questions, leaves, comes again."""
    rng = random.Random(f"{args.seed} {number}")
    while not record.is_over.is_set():
        for _ in range(rng.randrange(1, 20)):
            if record.is_over.is_set():
                return
            request = bad(rng) if rng.random() < 0.06 else draw(rng, args.kinds)
            begun = time.monotonic()
            try:
                outcome = perform(port, request, rng, args.deadline, args.leave_share)
                record.note(request.kind, outcome, time.monotonic() - begun if outcome == "answered" else None)
                if outcome == "busy":
                    time.sleep(rng.random())
            # Whatever goes wrong with an answer is the server's fault, or this driver's, and not to be passed over.
            except Exception as error:  # noqa: BLE001
                what = f"stuck: not over after {args.deadline} s" if isinstance(error, TimeoutError) else f"{type(error).__name__}: {error}"
                record.complain(request.kind, f"{what}: {json.dumps(request.body)[:200]}")
                record.is_over.wait(1)
        record.is_over.wait(rng.choice([0, 0, 1, 4]))


def ask_reference(port, path, body, seconds):
    """The choices of a request that does not leave; None while the server is busy."""
    exchange = Exchange(port, Request("reference", path, body), seconds)
    try:
        exchange.send()
        response = exchange.connection.getresponse()
        answer = json.loads(response.read())
        return answer["choices"] if response.status == 200 else None if response.status in (429, 503) else answer
    finally:
        exchange.close()


def ask_references(port, record, expected, args):
    """Asks the references in turn until the end."""
    while not record.is_over.wait(args.reference_seconds / len(REFERENCES)):
        path, body = REFERENCES[record.outcomes["reference"].total() % len(REFERENCES)]
        try:
            choices = ask_reference(port, path, body, args.deadline)
        except Exception as error:  # noqa: BLE001
            record.complain("reference", f"{type(error).__name__}: {error}")
            continue
        record.note("reference", "busy" if choices is None else "answered")
        if choices is not None and choices != expected[json.dumps(body)]:
            record.complain("reference", f"{json.dumps(choices)[:200]} instead of {json.dumps(expected[json.dumps(body)])[:200]}")


def metrics(server):
    status, text = server.get("/metrics")
    if status != 200:
        raise Complaint(f"/metrics answered {status}")
    return {":".join(filter(None, (name, label))): float(value) for name, label, value in METRIC.findall(text)}


def sample(server, begun):
    """The process and its metrics now."""
    if server.process.poll() is not None:
        raise Complaint(f"the server ended with status {server.process.returncode}")
    process = pathlib.Path(f"/proc/{server.process.pid}")
    status = dict(line.split(":\t") for line in (process / "status").read_text(encoding="utf-8").splitlines() if ":\t" in line)
    kib = lambda key: int(status[key].split()[0])
    now = metrics(server)
    return {"second": round(time.monotonic() - begun, 1), "rss_kib": kib("VmRSS"), "rss_anon_kib": kib("RssAnon"),
            "threads": int(status["Threads"]), "files": len(list((process / "fd").iterdir())),
            "running": now["vllm:num_requests_running"], "waiting": now["vllm:num_requests_waiting"],
            "kv_cache_usage": round(now["vllm:kv_cache_usage_perc"], 3), "preemptions": now["vllm:num_preemptions_total"]}


def settle(server, before, begun):
    """The sample in which all is over, or the last one after half a minute; idle helper threads live for some seconds."""
    for _ in range(60):
        last = sample(server, begun)
        if last["running"] == last["waiting"] == last["kv_cache_usage"] == 0 and last["files"] <= before["files"] \
                and last["threads"] <= before["threads"] + 2:
            break
        time.sleep(0.5)
    return last


def memory_rule(samples, requests_per_second):
    """Whether memory is flat, and the figures behind that."""
    rows = samples[len(samples) // 2:]
    # The median slope of all pairs (Theil and Sen): a single step, such as a buffer of a new size, does not count as a leak.
    slopes = [(b["rss_anon_kib"] - a["rss_anon_kib"]) / (b["second"] - a["second"]) for a, b in itertools.combinations(rows, 2)]
    slope, median = statistics.median(slopes), statistics.median(row["rss_anon_kib"] for row in rows)
    seconds = min(600, rows[-1]["second"] - rows[0]["second"])
    grown, allowed = slope * seconds, 0.01 * median
    shows = round(allowed * 1024 / seconds / requests_per_second)
    detail = (f"RssAnon {median / 1024:.1f} MiB, growing by {grown / 1024:.2f} MiB in {seconds:.0f} s (allowed {allowed / 1024:.2f}); "
              f"a leak of {shows} bytes per request would show")
    return grown <= allowed, detail, {"median_kib": median, "kib_per_second": round(slope, 3), "grown_kib": round(grown, 1),
                                      "in_seconds": seconds, "allowed_kib": round(allowed, 1), "leak_that_shows_bytes_per_request": shows}


def log_errors(path):
    """Lines of level ERROR and lines of a panic."""
    lines = pathlib.Path(path).read_text(encoding="utf-8", errors="replace").splitlines()
    return [line for line in lines if '"level":"ERROR"' in line or "panicked" in line]


def verdict(record, samples, before, after, server, args):
    """What must hold: name, whether it does, and the figures."""
    total = lambda outcome: sum(counts[outcome] for counts in record.outcomes.values())
    asked = sum(counts.total() for counts in record.outcomes.values())
    is_flat, memory, memory_figures = memory_rule(samples, asked / (60 * args.minutes))
    references = [line for line in record.complaints if line.startswith("reference:")]
    complaints = [line for line in record.complaints if line not in references]
    numbers = metrics(server)
    failed = numbers["taper:failed_steps_total"] + numbers["vllm:request_success_total:error"]
    needed = {"preemptions": numbers["vllm:num_preemptions_total"], "cached tokens": numbers["vllm:prompt_tokens_cached_total"],
              "right guesses": numbers["vllm:spec_decode_num_accepted_tokens_total"],
              "choices aborted": numbers["vllm:request_success_total:abort"], "clients that left": total("left"),
              **{kind.__name__: record.outcomes[kind.__name__]["answered"] for kind in KINDS}}
    missing = [name for name, count in needed.items() if not count and not args.kinds]
    exit_status = server.stop()
    errors = log_errors(server.log)
    rules = [
        ("answers", not complaints and not failed, f"{asked} requests: {total('answered')} answered, {total('left')} left, "
         f"{total('refused')} bad ones refused, {total('busy')} told to come again, {len(complaints)} complaints, "
         f"{failed:.0f} failed steps or choices"),
        ("references", not references and record.outcomes["reference"]["answered"] > 0,
         f"{record.outcomes['reference']['answered']} answers, {len(references)} not as before"),
        ("blocks", after["running"] == after["waiting"] == after["kv_cache_usage"] == 0,
         f"{after['running']:.0f} running, {after['waiting']:.0f} waiting, {after['kv_cache_usage']:.1%} of the blocks held at the end"),
        ("memory", is_flat, memory),
        ("handles", after["files"] <= before["files"] and after["threads"] <= before["threads"] + 2,
         f"{before['files']} open files before, {after['files']} after; threads {before['threads']}, {after['threads']}"),
        ("log", not errors and exit_status == 0, f"{len(errors)} errors; exit status {exit_status}; {' '.join(errors[:1])[:300]}"),
        ("coverage", not missing, f"missing: {', '.join(missing)}" if missing else
         f"{numbers['vllm:num_preemptions_total']:.0f} preemptions, {numbers['taper:kv_blocks_restored_total']:.0f} blocks from disk"),
    ]
    return rules, {"memory": memory_figures, "metrics": {name: value for name, value in numbers.items() if "seconds" not in name}}


def soak(server, args):
    """Runs the load; the rules and the summary."""
    begun = time.monotonic()
    record, expected = Record(), {}
    for path, body in REFERENCES:
        expected[json.dumps(body)] = ask_reference(server.port, path, body, args.deadline)
    before = sample(server, begun)
    threads = [threading.Thread(target=client, args=(number, server.port, record, args), daemon=True) for number in range(args.clients)]
    threads.append(threading.Thread(target=ask_references, args=(server.port, record, expected, args), daemon=True))
    for thread in threads:
        thread.start()
    samples = []
    try:
        while time.monotonic() - begun < 60 * args.minutes:
            time.sleep(args.sample_seconds)
            samples.append(sample(server, begun))
            if len(samples) % 12 == 1:
                print(json.dumps(samples[-1]), file=sys.stderr, flush=True)
        record.is_over.set()
        for thread in threads:
            thread.join(args.deadline + 10)
        stuck = sum(thread.is_alive() for thread in threads)
        if stuck:
            record.complain("clients", f"{stuck} are not done {args.deadline} s after the end")
        after = settle(server, before, begun)
        rules, figures = verdict(record, samples, before, after, server, args)
    except (Complaint, OSError, KeyError) as error:
        raise SystemExit(f"the server is gone or does not answer: {error}\n{server.log_end()}") from error
    finally:
        record.is_over.set()
    kinds = {kind: {**counts, "median_s": round(statistics.median(record.seconds[kind] or [0]), 3),
                    "longest_s": round(max(record.seconds[kind], default=0), 3)} for kind, counts in sorted(record.outcomes.items())}
    return rules, {"kinds": kinds, "complaints": record.complaints, **figures, "before": before, "after": after, "samples": samples}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--taper-binary", default="target/release/taper", metavar="PATH")
    parser.add_argument("--taper", default="", metavar="FLAGS", help="more flags of `taper serve`")
    parser.add_argument("--model", default="smollm2:135m")
    parser.add_argument("--minutes", type=float, default=30)
    parser.add_argument("--clients", type=int, default=12)
    parser.add_argument("--kinds", nargs="+", choices=[kind.__name__ for kind in KINDS], metavar="KIND",
                        help="only requests of these kinds, to find which one breaks a rule: " + ", ".join(kind.__name__ for kind in KINDS))
    parser.add_argument("--leave-share", type=float, default=0.15, help="of the requests whose client leaves")
    parser.add_argument("--deadline", type=float, default=120, help="seconds after which a request counts as stuck")
    parser.add_argument("--reference-seconds", type=float, default=20, help="in which all references are asked once")
    parser.add_argument("--sample-seconds", type=float, default=5)
    parser.add_argument("--context", type=int, default=2048)
    parser.add_argument("--kv-cache-size", default="64MiB", help="few contexts, so that sequences are preempted")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--port", type=int, default=8350)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--out", metavar="JSON", help="file of the summary")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="taper-soak-") as folder:
        command = [args.taper_binary, "serve", "-m", args.model, "-t", str(args.threads), "-c", str(args.context),
                   "--kv-cache-size", args.kv_cache_size, "--cache-dir", f"{folder}/cache", "--cache-dir-size", "128MiB",
                   "--max-batch", "8", "--max-queued", "12", "--speculation", "lookup", "--log-format", "json", *shlex.split(args.taper)]
        with servers({"taper": command}, args.port, folder) as (server,):
            build = build_of(server)
            rules, summary = soak(server, args)
            head = {"bench": "soak", "passed": all(holds for _, holds, _ in rules), "minutes": args.minutes, "clients": args.clients,
                    "rules": {name: {"holds": holds, "figures": figures} for name, holds, figures in rules},
                    "command": shlex.join(server.command), "build": build, "malloc_arena_max": os.environ.get("MALLOC_ARENA_MAX"),
                    **origin(args, args.taper_binary)}
    for name, holds, figures in rules:
        print(f"{'holds' if holds else 'FAILS'}  {name:<10}  {figures}")
    if args.out:
        pathlib.Path(args.out).write_text(json.dumps(head | summary, indent=1) + "\n", encoding="utf-8")
    return 0 if head["passed"] else 1


if __name__ == "__main__":
    sys.exit(main())
