#!/usr/bin/env python3
"""Drives a running `taper serve` with other people's clients and with hostile ones.

    tests/clients/run.py [NAME...] --taper BIN --model GGUF --work DIR [--ports A-B]

Each script of tests/clients (without names: all that need no download of gigabytes) gets servers of its own, started with
the flags that its row below says, and the packages of its requirements file, installed under DIR once. A line per check,
`ok` or `FAIL` and why, then a summary. Exit status 1 if anything failed. README.md says what each script needs and checks.
"""
import argparse
import contextlib
import dataclasses
import os
import pathlib
import resource
import shutil
import signal
import subprocess
import sys
import threading
import time

from taper_server import DidNotStart, TaperServer, free_port, port_list

HERE = pathlib.Path(__file__).resolve().parent
KEY = "key-of-the-tests"
# Certificates of the server's own tests.
CERTIFICATES = HERE.parent.parent / "server" / "tests" / "data"
TLS = ["--tls-cert", str(CERTIFICATES / "localhost.crt"), "--tls-key", str(CERTIFICATES / "localhost.key")]


@dataclasses.dataclass
class Script:
    """A script: what it needs installed, the servers that it talks to (name to flags; "" is its main one) and its time."""
    file: str
    packages: str | None = None
    servers: dict = dataclasses.field(default_factory=lambda: {"": []})
    seconds: int = 600
    by_default: bool = True


SCRIPTS = {
    "openai_python": Script("openai_python.py", "openai", {
        "": [], "keyed": ["--api-key", KEY], "busy": ["--max-batch", "1", "--max-queued", "1"]}),
    "openai_node": Script("node/openai_node.mjs", "node", {"": [], "keyed": ["--api-key", KEY]}),
    "ai_sdk": Script("node/ai_sdk.mjs", "node"),
    "hostile": Script("hostile.py", None, {"": [], "tls": TLS}, seconds=1800),
    "disconnects": Script("disconnects.py", None, {"": ["--max-queued", "4096"]}, seconds=3600),
    "drain": Script("drain.py", None, {}),
    "anthropic_python": Script("anthropic_python.py", "anthropic", {"": [], "keyed": ["--api-key", KEY]}),
    "ollama_python": Script("ollama_python.py", "ollama"),
    "lm_eval": Script("lm_eval_harness.py", "lm_eval", seconds=3600, by_default=False),
    "schemathesis_api": Script("schemathesis_api.py", "schemathesis", {"": ["--ctx", "2048", "--request-timeout", "20"]}, seconds=3600),
    "llm_comply": Script("llm_comply.py", "compliance", {"": ["--require-model", "--temperature", "0"]}),
    "monitoring": Script("monitoring.py"),
    "overhead": Script("overhead.py", None, {}, seconds=1800),
}


def prepared(packages, work):
    """The interpreter that has these packages; installs them when the list has changed."""
    if packages is None:
        return [sys.executable]
    if packages == "node":
        return prepare_node(work)
    wanted = (HERE / "requirements" / f"{packages}.txt").read_text(encoding="utf-8")
    folder = work / "venv" / packages
    stamp, python = folder / "installed.txt", folder / "bin" / "python"
    if not stamp.exists() or stamp.read_text(encoding="utf-8") != wanted:
        shutil.rmtree(folder, ignore_errors=True)
        subprocess.run([sys.executable, "-m", "venv", folder], check=True)
        subprocess.run([python, "-m", "pip", "install", "--quiet", "-r", HERE / "requirements" / f"{packages}.txt"], check=True)
        stamp.write_text(wanted, encoding="utf-8")
    return [str(python)]


def prepare_node(work):
    """Node with the packages of package-lock.json. Scripts run from a copy beside them, because imports look there."""
    folder = work / "node"
    folder.mkdir(parents=True, exist_ok=True)
    wanted = (HERE / "node" / "package-lock.json").read_text(encoding="utf-8")
    stamp = folder / "installed.json"
    for file in (HERE / "node").iterdir():
        if file.is_file():
            shutil.copy(file, folder)
    if not stamp.exists() or stamp.read_text(encoding="utf-8") != wanted:
        subprocess.run(["npm", "ci", "--no-audit", "--no-fund", "--loglevel=error"], cwd=folder, check=True)
        stamp.write_text(wanted, encoding="utf-8")
    return ["node"]


def start_servers(stack, script, name, args, logs, report):
    """The script's servers that started, by name."""
    started = {}
    for server, flags in script.servers.items():
        try:
            taper = stack.enter_context(TaperServer(args.taper, args.model, free_port(args.port_list),
                                                    logs / f"{name}{'-' + server if server else ''}.server.log", flags))
            taper.wait_until_ready(is_tls=flags is TLS)
            started[server] = taper
        except DidNotStart as reason:
            report(f"FAIL {name}.server{'-' + server if server else ''}: it did not start: {reason}")
    return started


def command_of(script, interpreter, servers, args, work):
    """The script's command line."""
    file = work / "node" / pathlib.Path(script.file).name if script.packages == "node" else HERE / script.file
    command = [*interpreter, str(file), "--taper", args.taper, "--model", args.model, "--work", str(work)]
    command += ["--ports", f"{args.port_list[0]}-{args.port_list[-1]}"]
    for name, server in servers.items():
        command += ["--server", f"{name}={server.url}"] if name else ["--base-url", server.url, "--pid", str(server.process.pid)]
    if args.only:
        command += ["--only", args.only]
    return command + args.pass_on


def run_script(name, script, args, work, logs, report):
    """Runs one script with its servers and reports its lines, and how the servers were at the end."""
    try:
        interpreter = prepared(script.packages, work)
    except (subprocess.CalledProcessError, OSError) as error:
        report(f"FAIL {name}.packages: they cannot be installed: {error}")
        return
    args.port_list = port_list(args.ports)
    with contextlib.ExitStack() as stack:
        servers = start_servers(stack, script, name, args, logs, report)
        if "" in script.servers and "" not in servers:
            return
        environment = {**os.environ, "PYTHONUNBUFFERED": "1", "CLIENTS_KEY": KEY}
        with open(logs / f"{name}.stderr.log", "w", encoding="utf-8") as errors:
            child = subprocess.Popen(command_of(script, interpreter, servers, args, work), stdin=subprocess.DEVNULL,
                                     stdout=subprocess.PIPE, stderr=errors, text=True, errors="replace",
                                     start_new_session=True, env=environment)
        stack.callback(end, child)
        timer = threading.Timer(script.seconds * args.patience, end, [child])
        timer.daemon = True
        timer.start()
        told, failed = 0, 0
        for line in child.stdout:
            line = line.rstrip("\n")
            if line.startswith(("ok   ", "FAIL ")):
                told, failed = told + 1, failed + line.startswith("FAIL")
                line = f"{line[:5]}{name}.{line[5:]}"
            report(line)
        status = child.wait()
        timer.cancel()
        # A script that ended early has not told of its last checks.
        if status != (1 if failed else 0) or not told and not args.only:
            end_of_log = (logs / f"{name}.stderr.log").read_text(encoding="utf-8", errors="replace").strip().splitlines()[-1:]
            report(f"FAIL {name}.script: it ended with status {status} after {told} checks {' '.join(end_of_log)[:300]}")
        for server, taper in servers.items():
            report_end(f"{name}.server{'-' + server if server else ''}", taper, report)


def report_end(name, server, report):
    """How a server was at the end: alive, without errors in its log, and stopping when asked."""
    if server.process.poll() is not None:
        report(f"FAIL {name}: it ended with status {server.process.returncode}: {server.log_end()}")
        return
    status, errors = server.stop(), server.log_errors()
    if status != 0:
        report(f"FAIL {name}: {'it did not stop within 30 s' if status is None else f'it stopped with status {status}'}")
    elif errors:
        report(f"FAIL {name}: its log has {len(errors)} errors, the first: {errors[0][:300]}")
    else:
        report(f"ok   {name}: no errors in its log, stopped with status 0")


def end(child):
    """Ends a script and what it started."""
    if child.poll() is None:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(child.pid, signal.SIGKILL)
        child.wait()


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", metavar="NAME", nargs="*", help=f"which scripts: {', '.join(SCRIPTS)}")
    parser.add_argument("--taper", required=True, metavar="BIN", help="the server's program")
    parser.add_argument("--model", required=True, metavar="GGUF", help="what it serves")
    parser.add_argument("--work", required=True, type=pathlib.Path, metavar="DIR", help="for packages, logs and results; kept")
    parser.add_argument("--ports", default="8700-8719", metavar="A-B", help="ports for servers [default: %(default)s]")
    parser.add_argument("--only", metavar="REGEX", help="only checks whose names match")
    parser.add_argument("--pass-on", action="append", default=[], metavar="ARG",
                        help="an argument for the scripts, such as --pass-on=--count=500; --help of a script lists its own")
    parser.add_argument("--patience", type=float, default=1, metavar="FACTOR",
                        help="multiplies the time that checks and clients have, for a machine that is busy with other things [default: %(default)s]")
    args = parser.parse_args()
    unknown = [name for name in args.names if name not in SCRIPTS]
    if unknown:
        parser.error(f"there is no script {unknown[0]!r}; there are {', '.join(SCRIPTS)}")
    os.environ["CLIENTS_PATIENCE"] = str(args.patience)
    args.taper, args.model, work = str(pathlib.Path(args.taper).resolve()), str(pathlib.Path(args.model).resolve()), args.work.resolve()
    logs = work / "logs"
    logs.mkdir(parents=True, exist_ok=True)
    # Ten thousand connections need as many files, as a service is given them.
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
    # So that servers end with this program, whoever ends it.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    lines = []

    def report(line):
        lines.append(line)
        print(line, flush=True)

    for name in args.names or [name for name, script in SCRIPTS.items() if script.by_default]:
        begun = time.monotonic()
        print(f"== {name}", flush=True)
        run_script(name, SCRIPTS[name], args, work, logs, report)
        print(f"== {name}: {time.monotonic() - begun:.0f} s", flush=True)
    passed, failed = (sum(line.startswith(start) for line in lines) for start in ("ok   ", "FAIL "))
    print(f"{passed} checks passed, {failed} failed; logs are in {logs}")
    for line in lines:
        if line.startswith("FAIL "):
            print(f"  {line}")
    sys.exit(1 if failed else 0)


if __name__ == "__main__":
    main()
