#!/usr/bin/env python3
"""The same small tasks by lm-evaluation-harness through the server and through Hugging Face's transformers on the same file.

    run.py lm_eval       (needs requirements/lm_eval.txt: 5 GB with torch; not among the scripts that run without a name)

`lm_eval_tasks` has 100 questions with four answers each (log-likelihoods: echo, log-probabilities and prompts of token ids)
and 70 lines to be written greedily. Every figure through the server must be within `--most` of the reference's, and the
log-likelihoods near its.
"""
import json
import os
import pathlib
import shutil
import subprocess
import sys

from checks import PATIENCE, Failed, check, expect, main, request

TASKS = pathlib.Path(__file__).resolve().parent / "lm_eval_tasks"
FIGURES = (("taper_choice", "acc"), ("taper_choice", "acc_norm"), ("taper_greedy", "exact_match"))
MAKE_TOKENIZER = "import sys, transformers; transformers.AutoTokenizer.from_pretrained(sys.argv[1], gguf_file=sys.argv[2]).save_pretrained(sys.argv[3])"


class Harness:
    """Runs of the harness; each is run once."""

    def __init__(self, args):
        self.args, self.runs = args, {}
        self.folder = pathlib.Path(args.work).resolve() / "lm_eval"
        self.name = json.loads(request(args.base_url, "GET", "/v1/models")[2])["data"][0]["id"]
        self.model = pathlib.Path(args.model)

    def python(self, *arguments, seconds=1800):
        """Runs the interpreter that has the packages."""
        environment = {**os.environ, "HF_HUB_OFFLINE": "1", "HF_DATASETS_OFFLINE": "1", "TOKENIZERS_PARALLELISM": "false"}
        done = subprocess.run([sys.executable, *arguments], cwd=TASKS, capture_output=True, text=True, timeout=seconds * PATIENCE, env=environment)
        if done.returncode:
            # Bars of progress may follow the reason.
            lines = [line for line in done.stderr.strip().splitlines() if "it/s]" not in line]
            raise Failed(f"{arguments[:4]} ended with {done.returncode}: {' '.join(lines[-2:])}")

    def tokenizer(self):
        """A folder with the tokenizer of the file."""
        folder = self.folder / "tokenizer"
        if not folder.exists():
            self.python("-c", MAKE_TOKENIZER, str(self.model.parent), self.model.name, str(folder))
        return folder

    def reference(self):
        """Where transformers takes the weights from."""
        if self.args.reference:
            return f"pretrained={self.args.reference}"
        return f"pretrained={self.model.parent},gguf_file={self.model.name}"

    def run(self, name):
        """Figures and samples of a run, by task."""
        if name not in self.runs:
            self.runs[name] = self.run_now(name)
        if isinstance(self.runs[name], Exception):
            raise self.runs[name]
        return self.runs[name]

    def run_now(self, name):
        base = f"model={self.name},base_url={self.args.base_url}/v1/completions,num_concurrent=4,max_retries=1,max_length=2048"
        model, settings = {
            "server": ("local-completions", f"{base},tokenizer={self.tokenizer()},tokenized_requests=True"),
            "server-strings": ("local-completions", f"{base},tokenizer={self.tokenizer()},tokenized_requests=False"),
            "server-tokenizer": ("local-completions", f"{base},tokenizer_backend=remote,tokenized_requests=True"),
            "reference": ("hf", f"{self.reference()},tokenizer={self.tokenizer()},dtype=float32,max_length=2048"),
        }[name]
        out = self.folder / name
        shutil.rmtree(out, ignore_errors=True)
        command = ["-m", "lm_eval", "run", "--model", model, "--model_args", settings, "--tasks", "taper_choice,taper_greedy",
                   "--include_path", str(TASKS), "--output_path", str(out), "--log_samples", "--batch_size", "1"]
        if model == "hf":
            command += ["--device", "cpu"]
        try:
            self.python(*command)
            results = json.loads(next(out.rglob("results_*.json")).read_text(encoding="utf-8"))["results"]
            samples = {}
            for file in out.rglob("samples_*.jsonl"):
                rows = [json.loads(line) for line in file.read_text(encoding="utf-8").splitlines()]
                samples[file.name.removeprefix("samples_").rsplit("_", 1)[0]] = {row["doc_id"]: row for row in rows}
            return results, samples
        # The other checks of the same run fail by the same reason, at once.
        except Exception as error:  # noqa: BLE001
            return error


def figure(results, task, metric):
    return next(value for key, value in results[task].items() if key.split(",")[0] == metric)


def compare(t, name):
    """All figures of a run beside the reference's."""
    ours, theirs = t.run(name)[0], t.run("reference")[0]
    rows = [(f"{task} {metric}", figure(ours, task, metric), figure(theirs, task, metric)) for task, metric in FIGURES]
    figures = ", ".join(f"{what} {mine:.3f} ({other:.3f})" for what, mine, other in rows)
    expect(all(abs(mine - other) <= t.args.most for _, mine, other in rows), figures)
    return f"{figures}; in brackets the reference's"


@check("lm_eval.figures", seconds=3000)
def _(t):
    return compare(t, "server")


@check("lm_eval.log_likelihoods", seconds=3000)
def _(t):
    (_, ours), (_, theirs) = t.run("server"), t.run("reference")
    differences = [abs(float(mine[0][0]) - float(other[0][0])) for doc, row in ours["taper_choice"].items()
                   for mine, other in zip(row["resps"], theirs["taper_choice"][doc]["resps"])]
    mean = sum(differences) / len(differences)
    figures = f"{len(differences)} log-likelihoods differ by {mean:.4f} in the mean, by {max(differences):.4f} at most"
    expect(mean < 0.05, figures)
    return figures


@check("lm_eval.greedy_texts", seconds=3000)
def _(t):
    (_, ours), (_, theirs) = t.run("server"), t.run("reference")
    first = lambda row: row["resps"][0][0]
    same = sum(first(row).strip() == first(theirs["taper_greedy"][doc]).strip() for doc, row in ours["taper_greedy"].items())
    figures = f"{same} of {len(ours['taper_greedy'])} texts are the reference's"
    expect(same >= 0.95 * len(ours["taper_greedy"]), figures)
    return figures


@check("lm_eval.prompts_as_strings", seconds=3000)
def _(t):
    return compare(t, "server-strings")


@check("lm_eval.tokenizer_of_the_server", seconds=3000)
def _(t):
    return compare(t, "server-tokenizer")


def add(parser):
    parser.add_argument("--reference", help="a folder with the same weights as transformers saves them, for a version that cannot read the GGUF")
    parser.add_argument("--most", type=float, default=0.02, help="how far a figure may be from the reference's [default: %(default)s]")


if __name__ == "__main__":
    main(__doc__, Harness, add)
