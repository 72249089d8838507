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
  memory      the median RssAnon (VmRSS without the model's file) of the last third of the run is at most 1 % or 2 MiB above
              that of the middle third; the first third is for buffers and caches to fill. The size of leak that this
              would show, in bytes per request, is told: the shorter the run, the larger
  handles     not more open files than before the load, and no more than two more threads
  log         no line of level ERROR, and none of a panic; SIGTERM ends the server with status 0
  coverage    the run had what it is for: preemptions, cached tokens, right guesses, clients that left, every kind of request
"""
import argparse
import collections
import http.client
import json
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
from soak_requests import BAD, KINDS, REFERENCES, Request, bad, draw

METRIC = re.compile(r'^(\S+?)\{engine="0",model_name="[^"]*"(?:,(?:finished_reason|source)="(\w+)")?\} (\S+)$', re.MULTILINE)


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
        with self.lock:
            self.complaints.append(f"{kind}: {what}"[:500])
        print(f"complaint: {kind}: {what}"[:500], file=sys.stderr, flush=True)


def client(number, port, record, args):
    """Comes, asks some questions, leaves, comes again."""
    rng = random.Random(f"{args.seed} {number}")
    while not record.is_over.is_set():
        for _ in range(rng.randrange(1, 20)):
            if record.is_over.is_set():
                return
            request = bad(rng) if rng.random() < 0.06 else draw(rng)
            begun = time.monotonic()
            try:
                outcome = perform(port, request, rng, args.deadline, args.leave_share)
                record.note(request.kind, outcome, time.monotonic() - begun if outcome == "answered" else None)
                if outcome == "busy":
                    time.sleep(rng.random())
            except TimeoutError:
                record.complain(request.kind, f"stuck: not over after {args.deadline} s: {json.dumps(request.body)[:200]}")
            except (Complaint, OSError, http.client.HTTPException, ValueError, KeyError, TypeError, IndexError) as error:
                record.complain(request.kind, f"{type(error).__name__}: {error}: {json.dumps(request.body)[:200]}")
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
        except (OSError, ValueError, KeyError) as error:
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


def memory_rule(samples, requests, minutes):
    """Whether memory is flat, and the figures behind that."""
    third = len(samples) // 3
    middle, last = (statistics.median(row["rss_anon_kib"] for row in part) for part in (samples[third:-third], samples[-third:]))
    allowed = max(0.01 * middle, 2048)
    per_request = round(allowed * 1024 / (requests / 3)) if requests else None
    detail = (f"RssAnon {middle / 1024:.1f} MiB in the middle third, {last / 1024:.1f} in the last ({(last - middle) / 1024:+.2f} in "
              f"{minutes / 3:.1f} minutes, allowed {allowed / 1024:.1f}); a leak of {per_request} bytes per request would show")
    return last - middle <= allowed, detail, {"middle_kib": middle, "last_kib": last, "allowed_kib": allowed,
                                              "leak_that_shows_bytes_per_request": per_request}


def log_errors(path):
    """Lines of level ERROR and lines of a panic."""
    lines = pathlib.Path(path).read_text(encoding="utf-8", errors="replace").splitlines()
    return [line for line in lines if '"level":"ERROR"' in line or "panicked" in line]


def verdict(record, samples, before, after, server, args):
    """What must hold: name, whether it does, and the figures."""
    asked = sum(counts.total() for counts in record.outcomes.values())
    answered = sum(counts["answered"] for counts in record.outcomes.values())
    busy, left = (sum(counts[outcome] for counts in record.outcomes.values()) for outcome in ("busy", "left"))
    is_flat, memory, figures = memory_rule(samples, asked, args.minutes)
    numbers = metrics(server)
    exit_status = server.stop()
    errors = log_errors(server.log)
    needed = {"preemptions": numbers["vllm:num_preemptions_total"], "cached tokens": numbers["vllm:prompt_tokens_cached_total"],
              "right guesses": numbers["vllm:spec_decode_num_accepted_tokens_total"],
              "choices aborted": numbers["vllm:request_success_total:abort"], "clients that left": left}
    needed |= {kind.__name__: record.outcomes[kind.__name__]["answered"] for kind in KINDS}
    missing = [name for name, count in needed.items() if not count]
    failed = numbers["taper:failed_steps_total"] + numbers["vllm:request_success_total:error"]
    complaints = [line for line in record.complaints if not line.startswith("reference:")]
    refused = sum(record.outcomes[request.kind]["refused"] for request in BAD)
    references = [line for line in record.complaints if line.startswith("reference:")]
    rules = [
        ("answers", not complaints and not failed, f"{asked} requests: {answered} answered, {left} left, {refused} bad ones refused, "
         f"{busy} told to come again, {len(complaints)} complaints, {failed:.0f} failed steps or choices"),
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
    return rules, {"memory": figures, "metrics": {name: value for name, value in numbers.items() if "seconds" not in name}}


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
        while time.monotonic() - begun < 60 * args.minutes and server.process.poll() is None:
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
    except (Complaint, OSError) as error:
        raise SystemExit(f"the server is gone or does not answer: {error}\n{server.log_end()}") from error
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
                    "command": shlex.join(server.command), "build": build, **origin(args, args.taper_binary)}
    for name, holds, figures in rules:
        print(f"{'holds' if holds else 'FAILS'}  {name:<10}  {figures}")
    if args.out:
        pathlib.Path(args.out).write_text(json.dumps(head | summary, indent=1) + "\n", encoding="utf-8")
    return 0 if head["passed"] else 1


if __name__ == "__main__":
    sys.exit(main())
