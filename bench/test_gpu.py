#!/usr/bin/env python3
"""Tests of gpu.sh and gpu_report.py on a machine without a GPU, with programs that play taper, nvidia-smi, torch and compute-sanitizer:

    python3 -m unittest discover -s bench -p 'test_gpu.py'

gpu_peers.py itself runs on the processor where torch is installed (`--device cpu`); the test of it is left out elsewhere.
"""
import contextlib
import importlib.util
import io
import json
import os
import pathlib
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import types
import unittest
from unittest import mock

HERE = pathlib.Path(__file__).resolve().parent
SCRIPT = HERE / "gpu.sh"

# A taper whose behaviour is told by the files of the folder it lies in: BENCH.says is run instead of the benchmark.
TAPER = r"""#!/usr/bin/env bash
here=$(dirname "$0")
what=$1; [ "$1" != bench ] || what=$2
case $what in --version) echo "taper 0.1.0"; exit ;; doctor) echo '{"version":"0.1.0","commit":"abc123","isa":"x"}'; exit ;; esac
while [ $# -gt 0 ]; do [ "$1" != --json ] || json=$2; shift; done
[ ! -f "$here/$what.says" ] || . "$here/$what.says"
if [ "$what" = tune ]; then echo "1 shape; 1.000 as chosen"; exit; fi
if [ "$what" = selftest ]; then echo "GPU 0, NVIDIA H200, cuda-bf16: 123 checks, all passed"; exit; fi
[ "$what" != bandwidth ] || echo '{"bench":"bandwidth","case":"best","params":{},"median":4000,"p10":3900,"p90":4100,"unit":"GB/s","gbps":4000,"isa":"cuda","machine":"NVIDIA H200"}' >"$json"
[ "$what" = bandwidth ] || echo '{"bench":"gemm","case":"BF16 28672x4096 M=1","params":{"type":"BF16","n":28672,"k":4096,"m":1},"median":3600,"p10":3500,"p90":3700,"unit":"GFLOP/s","gbps":3600,"isa":"cuda","machine":"NVIDIA H200"}' >"$json"
"""
NOT_YET = """echo 'taper: --device cuda:0: there is GPU 0, NVIDIA H200, compute capability 9.0, but nothing but `taper selftest` computes on GPUs yet; --device cpu computes' >&2; exit 2"""


class Run:
    def __init__(self, folder, path=None):
        self.folder, self.out = pathlib.Path(folder), pathlib.Path(folder) / "out"
        self.path = path or f"{folder}/bin:/usr/bin:/bin"
        self.program("taper", TAPER)

    def program(self, name, text):
        path = self.folder / "bin" / name
        path.parent.mkdir(exist_ok=True)
        path.write_text(text)
        path.chmod(0o755)
        return path

    def says(self, what, text):
        (self.folder / "bin" / f"{what}.says").write_text(text + "\n")

    def gpu(self):
        self.program("nvidia-smi", "#!/bin/sh\necho 'GPU 0: NVIDIA H200 (UUID: GPU-1)'\n")

    def command(self, *arguments):
        return ["bash", str(SCRIPT), "--taper", str(self.folder / "bin/taper"), "--out", str(self.out), *arguments]

    def __call__(self, *arguments, status):
        done = subprocess.run(self.command(*arguments), env={"PATH": self.path}, capture_output=True, text=True, timeout=120, check=False)
        assert done.returncode == status, f"status {done.returncode}, not {status}:\n{done.stdout}{done.stderr}"
        self.output = done.stdout + done.stderr
        return self.states()

    def states(self):
        lines = (self.out / "steps.tsv").read_text().splitlines() if (self.out / "steps.tsv").exists() else []
        return {line.split("\t")[0]: line.split("\t")[1] for line in lines}

    def why(self, step):
        return next(line.split("\t")[3] for line in (self.out / "steps.tsv").read_text().splitlines() if line.startswith(step + "\t"))

    def report(self):
        return json.loads((self.out / "report.json").read_text())


class Script(unittest.TestCase):
    def setUp(self):
        folder = tempfile.mkdtemp(prefix="taper-gpu-")
        self.addCleanup(shutil.rmtree, folder)
        self.run_script = Run(folder)

    def test_all_that_is_asked_for_and_there_is_ok(self):
        run = self.run_script
        run.gpu()
        states = run("--only", "selftest", "--only", "bandwidth", "--only", "tune", "--only", "gemm", status=0)
        self.assertEqual(states, {"selftest": "ok", "bandwidth": "ok", "tune": "ok", "gemm": "ok", "report": "ok"})
        self.assertIn("--shape BF16 28672x4096 --shape", (run.out / "tune.log").read_text())
        report = run.report()
        goal = next(goal for goal in report["goals"] if goal["item"] == "one row, 28672x4096")
        self.assertEqual((goal["ours"], goal["verdict"]), (0.9, "good"))
        self.assertTrue((run.out / "report.html").read_text().endswith("</html>\n"))
        self.assertIn("all steps are ok", run.output)

    def test_what_a_binary_does_not_do_on_gpus_yet_is_not_offered(self):
        run = self.run_script
        run.gpu()
        run.says("gemm", NOT_YET)
        run.says("softmax", "echo \"error: unrecognized subcommand 'softmax'\" >&2; exit 2")
        states = run("--only", "gemm", "--only", "softmax", status=3)
        self.assertEqual((states["gemm"], states["softmax"]), ("not offered", "not offered"))

    def test_a_failed_step_is_told_and_the_others_run(self):
        run = self.run_script
        run.gpu()
        run.says("selftest", "echo 'taper: 3 checks failed'; exit 1")
        run.says("gemm", "echo \"error: unexpected argument '--type' found\" >&2; exit 2")
        run.says("attention", "kill -SEGV $$")
        states = run("--only", "selftest", "--only", "gemm", "--only", "attention", "--only", "softmax", status=1)
        self.assertEqual(states, {"selftest": "failed", "gemm": "failed", "attention": "failed", "softmax": "ok", "report": "ok"})
        self.assertIn("3 checks failed", run.why("selftest"))
        self.assertIn("FAILED: selftest attention gemm", run.output)

    def test_success_without_rows_or_of_the_processor_is_a_failure(self):
        run = self.run_script
        run.gpu()
        run.says("gemm", "exit 0")
        run.says("softmax", """echo '{"bench":"softmax","case":"a","median":1,"isa":"avx512","machine":"AMD EPYC"}' >"$json"; exit 0""")
        run.says("selftest", "echo 'avx2, 2 threads: 200 checks, all passed'; exit 0")
        states = run("--only", "gemm", "--only", "softmax", "--only", "selftest", status=1)
        self.assertEqual([states[step] for step in ("gemm", "softmax", "selftest")], ["failed"] * 3)

    def test_a_step_that_hangs_is_ended_and_its_rows_are_kept(self):
        run = self.run_script
        run.gpu()
        run.says("bandwidth", """echo '{"bench":"bandwidth","case":"a","median":1,"gbps":1,"isa":"cuda"}' >"$json"; trap '' TERM; sleep 60 & wait; sleep 60""")
        begin = time.monotonic()
        states = run("--only", "bandwidth", "--only", "gemm", "--seconds", "19", status=1)
        self.assertLess(time.monotonic() - begin, 30)
        self.assertEqual((states["bandwidth"], states["gemm"]), ("failed", "failed"))
        self.assertIn("out of time", run.why("bandwidth"))
        self.assertIn("no time left", run.why("gemm"))
        self.assertEqual(len(run.report()["rows"]), 1)

    def test_without_a_gpu_everything_is_absent_and_nothing_fails(self):
        run = self.run_script
        # Nothing but what the script needs: no nvidia-smi, python3 without torch, no compute-sanitizer.
        for what in ("selftest", "bandwidth", "tune", "gemm", "attention", "softmax"):
            run.says(what, "echo 'taper: --device cuda:0: no NVIDIA driver; --device cpu computes on the processor' >&2; exit 2")
        run.program("python3", f"#!/bin/sh\ncase $1 in -c) exit 1 ;; esac\nexec {sys.executable} \"$@\"\n")
        states = run(status=3)
        self.assertEqual(states.pop("report"), "ok")
        self.assertEqual(set(states.values()), {"absent"}, states)
        self.assertNotIn("model", states)

    def test_the_sanitizers_verdict_counts(self):
        run = self.run_script
        run.gpu()
        tool = """#!/bin/sh
case $2 in
memcheck) echo '========= ERROR SUMMARY: 2 errors'; exit 86 ;;
racecheck) echo '========= RACECHECK SUMMARY: 0 hazards displayed (0 errors, 0 warnings)' ;;
synccheck) echo '========= Error: Device not supported'; exit 1 ;;
esac
"""
        run.program("compute-sanitizer", tool)
        states = run("--only", "memcheck", "--only", "racecheck", "--only", "synccheck", status=1)
        self.assertEqual([states[step] for step in ("memcheck", "racecheck", "synccheck")], ["failed", "ok", "absent"])
        self.assertIn("2 errors", run.why("memcheck"))

    def test_peers_get_the_shapes_of_ours(self):
        run = self.run_script
        run.gpu()
        play = 'case $1 in -c) echo "2.11.0 with a GPU"; exit ;; */gpu_peers.py) echo "$@"; while [ $# -gt 0 ]; do [ "$1" != --json ] || json=$2; shift; done; echo \'{"median":1}\' >"$json"; exit ;; esac'
        run.program("python3", f"#!/bin/sh\n{play}\nexec {sys.executable} \"$@\"\n")
        states = run("--quick", "--only", "gemm", "--only", "peers-gemm", status=0)
        self.assertEqual(states["peers-gemm"], "ok")
        told = run.why("peers-gemm")
        self.assertIn("gemm --device cuda --json peers-gemm.jsonl --commit abc123", told)
        for shapes in ("--shape 4096x4096", "--rows 1,8"):
            self.assertIn(shapes, told)
            self.assertIn(shapes, (run.out / "gemm.log").read_text())

    def test_an_interrupted_run_leaves_a_report(self):
        run = self.run_script
        run.gpu()
        run.says("bandwidth", "touch begun; sleep 60")
        with subprocess.Popen(run.command("--only", "bandwidth", "--only", "gemm"), env={"PATH": run.path}, stdout=subprocess.PIPE,
                              stderr=subprocess.STDOUT, text=True) as script:
            while not (run.out / "begun").exists():
                time.sleep(0.05)
            script.send_signal(signal.SIGTERM)
            output, _ = script.communicate(timeout=30)
        self.assertEqual(script.returncode, 1, output)
        self.assertEqual(run.states(), {"bandwidth": "failed", "gemm": "failed", "report": "ok"})
        self.assertIn("interrupted", run.why("bandwidth"))

    def test_wrong_arguments_and_a_folder_that_cannot_be_written_are_told_before_anything_runs(self):
        run = self.run_script
        run("--only", "nothing", status=2)
        self.assertIn("no step nothing", run.output)
        run("--model", "/nowhere.gguf", status=2)
        run("--seconds", "ten", status=2)
        run("--frobnicate", status=2)
        run.out.write_text("a file")
        run(status=2)
        self.assertIn("cannot be written", run.output)
        run.out = pathlib.Path("/proc/taper-gpu")
        run(status=2)
        self.assertIn("cannot be written", run.output)
        done = subprocess.run(["bash", str(SCRIPT), "--taper", "/nowhere/taper", "--out", "x"], capture_output=True, text=True, check=False)
        self.assertEqual((done.returncode, "is no program" in done.stderr), (2, True))

    def test_help_is_the_head_of_the_script(self):
        done = subprocess.run(["bash", str(SCRIPT), "--help"], capture_output=True, text=True, check=True)
        self.assertTrue(done.stdout.startswith("Everything that can be measured") and "not offered" in done.stdout, done.stdout)


class Report(unittest.TestCase):
    def setUp(self):
        sys.path.insert(0, str(HERE))
        import gpu_report
        self.report = gpu_report
        self.folder = pathlib.Path(tempfile.mkdtemp(prefix="taper-gpu-"))
        self.addCleanup(shutil.rmtree, self.folder)

    def write(self, step, *rows):
        (self.folder / f"{step}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows) + '{"bench":"ge')

    def test_ours_and_peers_of_a_shape_meet(self):
        gemm = {"type": "BF16", "n": 28672, "k": 4096, "m": 8}
        common = {"bench": "gemm", "unit": "GFLOP/s", "case": "c", "gbps": 3000.0}
        self.write("gemm", {**common, "params": gemm, "median": 2e-3 * 28672 * 4096 * 8 / 60})
        peers = [{**common, "params": {**gemm, "arm": arm, "us_per_call": us, "place": place}, "median": 1}
                 for arm, us, place in (("cublas", 90.0, "cold"), ("cublaslt", 75.0, "cold"), ("cublas", 30.0, "warm"))]
        self.write("peers-gemm", *peers)
        rows, ceiling, bad = self.report.read_rows(self.folder)
        self.assertEqual((len(rows), ceiling, bad), (4, None, 2))
        comparisons = self.report.compare(rows)
        cold = next(each for each in comparisons if each["place"] == "cold")
        self.assertEqual((cold["shape"], cold["peer"], cold["peer_us"]), ("BF16 28672x4096 M=8", "cublaslt", 75.0))
        self.assertAlmostEqual(cold["ratio"], 1.25)
        goal = next(each for each in self.report.judge(rows, comparisons, ceiling) if "8 rows, 28672" in each["item"])
        self.assertEqual(goal["verdict"], "good")

    def test_goals_of_models_are_by_their_size(self):
        params = {"model": "llama-8b.gguf", "network": "taper", "kind": "decode", "n": 64, "depth": 1024}
        ours = {"bench": "model", "case": "tg64@1024", "unit": "tokens/s", "median": 250, "gbps": 4000.0, "bytes": 16e9, "params": params}
        theirs = {**ours, "median": 200, "params": {**params, "model": "llama-8b", "network": "compile", "us_per_call": 5000.0}}
        self.write("model", ours)
        self.write("peers-model", theirs)
        self.write("bandwidth", {"bench": "bandwidth", "case": "best", "params": {}, "median": 4400, "unit": "GB/s", "gbps": 4400.0})
        rows, ceiling, _ = self.report.read_rows(self.folder)
        judged = {goal["item"]: goal for goal in self.report.judge(rows, self.report.compare(rows), ceiling)}
        self.assertEqual(judged["decoding, a larger one, 1024 keys"]["verdict"], "good")
        self.assertEqual(judged["decoding, a model of at most 4 GB, 1024 keys"]["verdict"], "not measured")
        against = judged["decoding, 1024 keys, against the best"]
        self.assertAlmostEqual(against["ours"], 1.25)
        self.assertEqual((against["verdict"], judged["read bandwidth, GB/s"]["verdict"]), ("must", "record"))

    def test_rows_of_the_processors_benchmarks_can_be_read(self):
        for path in (HERE / "results").glob("*_zen5.jsonl"):
            shutil.copy(path, self.folder)
        done = subprocess.run([sys.executable, str(HERE / "gpu_report.py"), str(self.folder)], capture_output=True, text=True, check=False)
        self.assertEqual(done.returncode, 0, done.stderr)
        report = json.loads((self.folder / "report.json").read_text())
        attention = next(each for each in report["comparisons"] if each["shape"] == "32/8x64 b1@512")
        self.assertEqual(attention["peer"], "candle")
        self.assertGreater(attention["ratio"], 1)

    def test_markup_of_strangers_is_text(self):
        self.write("gemm", {"bench": "gemm", "case": "<b>x</b>", "params": {}, "median": 1, "unit": "us", "machine": "A & B"})
        (self.folder / "steps.tsv").write_text("gemm\tfailed\t1\t<script>\n")
        rows, ceiling, _ = self.report.read_rows(self.folder)
        page = self.report.page({"rows": rows, "read_bandwidth": ceiling, "goals": [], "comparisons": [], "absent": [],
                                 "steps": self.report.read_steps(self.folder)})
        self.assertTrue("&lt;b&gt;" in page and "A &amp; B" in page and "<script" not in page and "<b>" not in page)


@unittest.skipUnless(importlib.util.find_spec("torch"), "torch is not installed")
class Peers(unittest.TestCase):
    def peers(self, *arguments):
        with tempfile.TemporaryDirectory() as folder:
            path = f"{folder}/rows.jsonl"
            command = [sys.executable, str(HERE / "gpu_peers.py"), *arguments, "--device", "cpu", "--rounds", "3", "--calls", "3", "--ring-mib", "1",
                       "--bandwidth-mib", "16", "--json", path]
            done = subprocess.run(command, capture_output=True, text=True, env=dict(os.environ), timeout=300, check=False)
            self.assertEqual(done.returncode, 0, done.stdout + done.stderr)
            return [json.loads(line) for line in pathlib.Path(path).read_text().splitlines()], done.stdout

    def test_cold_calls_walk_the_ring_and_warm_ones_repeat_the_first(self):
        sys.path.insert(0, str(HERE))
        import gpu_timing
        import torch
        done, log = [], []

        class Graph:
            """What a graph of CUDA does, without one: the calls of its capture, at every replay."""
            def __init__(self):
                self.calls = []

            def replay(self):
                log.append(self.calls)

        @contextlib.contextmanager
        def capture(graph):
            begin = len(done)
            yield
            graph.calls = done[begin:]

        event = mock.Mock(elapsed_time=mock.Mock(return_value=2.0))
        about = types.SimpleNamespace(name="NVIDIA H200", L2_cache_size=1000, multi_processor_count=132)
        fakes = {"is_available": lambda: True, "get_device_properties": lambda name: about, "set_device": mock.Mock(), "graph": capture,
                 "CUDAGraph": Graph, "Event": lambda enable_timing: event, "stream": lambda side: contextlib.nullcontext(),
                 "mem_get_info": lambda: (1 << 30, 1 << 31)}
        for name in ("Stream", "current_stream", "synchronize", "_sleep", "empty_cache"):
            fakes[name] = mock.Mock()
        with contextlib.ExitStack() as stack, contextlib.redirect_stdout(io.StringIO()) as output:
            for name, fake in fakes.items():
                stack.enter_context(mock.patch.object(torch.cuda, name, fake))
            device = gpu_timing.Device("cuda")
            self.assertEqual((device.name, gpu_timing.ring_len(device, 300, 0)), ("cuda:0", 14))
            rows = gpu_timing.Rows(None, device, "abc")
            answers = {"right": torch.ones(4), "wrong": torch.zeros(4)}
            arms = [gpu_timing.Arm(name, lambda name=name: [lambda i=i: done.append((name, i)) or answers[name] for i in range(3)])
                    for name in answers]
            arms.append(gpu_timing.Arm("missing", lambda: importlib.import_module("no_such_library")))
            case = gpu_timing.Case("gemm", "case", {"n": 1}, bytes=1e6, reference=torch.ones(4))
            gpu_timing.measure(device, rows, case, arms, gpu_timing.Effort(rounds=5, calls=8))
        self.assertIn("absent: case wrong: the answer is wrong by 1.0e+00", output.getvalue())
        self.assertIn("absent: case missing: No module named", output.getvalue())
        self.assertEqual(log, [[("right", i % 3) for i in range(8)]] * 6 + [[("right", 0)] * 8] * 6)
        cold, warm = rows.rows
        self.assertEqual((cold["case"], warm["case"], cold["params"]["samples"]), ("case right", "case right, warm", 5))
        self.assertAlmostEqual(cold["median"], 2e3 / 8)
        self.assertAlmostEqual(cold["gbps"], 1e6 / 250e-6 / 1e9)

    def test_libraries_that_are_not_here_get_what_they_would_compute_from(self):
        """Stand-ins of flashinfer and flash-attention that attend to what they are given, as those are documented."""
        import torch

        def attend(q, k, v):
            """q [heads, dim], k and v [len, kv_heads, dim]."""
            group = q.shape[0] // k.shape[1]
            k, v = (each.float().repeat_interleave(group, 1).transpose(0, 1) for each in (k, v))
            scores = torch.einsum("hd,hld->hl", q.float(), k) * q.shape[-1] ** -0.5
            return torch.einsum("hl,hld->hd", scores.softmax(-1), v).to(torch.bfloat16)

        class Wrapper:
            def __init__(self, workspace, layout, use_tensor_cores):
                assert layout == "HND"

            def plan(self, starts, pages, last, heads, kv_heads, dim, page, q_data_type, kv_data_type):
                self.told = starts.tolist(), pages, last.tolist(), page

            def run(self, q, pair):
                starts, pages, last, page = self.told
                answers = []
                for i, vector in enumerate(q):
                    mine = pages[starts[i]:starts[i + 1]].long()
                    length = (len(mine) - 1) * page + last[i]
                    keys, values = (cache[mine].transpose(1, 2).flatten(0, 1)[:length] for cache in pair)
                    answers.append(attend(vector, keys, values))
                return torch.stack(answers)

        def with_kvcache(q, k, v, cache_seqlens, causal):
            return torch.stack([attend(q[i, 0], k[i, :n], v[i, :n]) for i, n in enumerate(cache_seqlens.tolist())]).unsqueeze(1)

        def tinygemm(x, w, out, bias):
            out.copy_(x @ w.t() + bias)

        flash = types.SimpleNamespace(flash_attn_with_kvcache=with_kvcache)
        libraries = {"flash_attn": flash, "flash_attn_interface": flash,
                     "flashinfer": types.SimpleNamespace(BatchDecodeWithPagedKVCacheWrapper=Wrapper, tinygemm_bf16=tinygemm)}
        sys.path.insert(0, str(HERE))
        import gpu_peers
        output = io.StringIO()
        told = ["--device", "cpu", "--rounds", "1", "--calls", "1", "--bandwidth-mib", "0"]
        with mock.patch.dict(sys.modules, libraries), contextlib.redirect_stdout(output):
            for arguments in (["attention", "--heads", "4/2x16", "--batch", "2", "--keys", "130", "--arms", "flashinfer,flash-attn", *told],
                              ["gemm", "--shape", "64x96", "--rows", "3", "--arms", "tinygemm", *told]):
                with mock.patch.object(sys, "argv", ["gpu_peers.py", *arguments]):
                    gpu_peers.main()
        self.assertNotIn("absent", output.getvalue())
        for name in ("flashinfer", "flashinfer-mma", "flash-attn-2", "flash-attn-3", "tinygemm"):
            self.assertIn(f" {name}: ", output.getvalue())

    def test_every_peer_that_needs_no_gpu_has_rows_like_ours(self):
        told = {"gemm": ["--shape", "256x128", "--rows", "1,3", "--compile"],
                "attention": ["--heads", "4/2x16", "--batch", "2", "--keys", "130"],
                "softmax": ["--powers", "8"],
                "model": ["--shapes", "tiny", "--case", "tg4@16", "--case", "b2", "--repeat", "2"]}
        ours = json.loads((HERE / "results/attention_zen5.jsonl").read_text().splitlines()[0])
        for what, arguments in told.items():
            with self.subTest(what):
                rows, output = self.peers(what, *arguments)
                of_what = [row for row in rows if row["bench"] == what]
                self.assertTrue(of_what, output)
                for row in rows:
                    self.assertEqual(set(ours), set(row) - {"void"})
                    self.assertLessEqual(row["p10"], row["p90"])
                self.assertTrue(all(row["share"] is not None for row in of_what))


if __name__ == "__main__":
    unittest.main()
