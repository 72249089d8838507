#!/usr/bin/env python3
"""Schemathesis against /openapi.json: requests made of the description, right and wrong ones; no 5xx, no answer that the description does not have.

    run.py schemathesis_api [--pass-on=--cases=200]       (needs requirements/schemathesis.txt)

A check for each operation. Its report (junit.xml) is left under the working folder.
"""
import json
import os
import pathlib
import subprocess
import sys
import xml.etree.ElementTree

from checks import CHECKS, PATIENCE, equal, expect, main, request, settle

RULES = "not_a_server_error,status_code_conformance,content_type_conformance,response_headers_conformance,response_schema_conformance"


def at_rest(url, model):
    """The last request may have unloaded the model, and only one that is loaded has gauges."""
    asked = {"model": model, "prompt": "a", "max_tokens": 1}
    equal(request(url, "POST", "/v1/completions", asked)[0], 200, "the status of an answer")
    settle(url, 60)


def prepare(args):
    """Runs it and registers a check for each operation."""
    CHECKS.append(("description", lambda _: equal(request(args.base_url, "GET", "/openapi.json")[0], 200, "the status of /openapi.json"), 10))
    folder = pathlib.Path(args.work) / "schemathesis"
    folder.mkdir(parents=True, exist_ok=True)
    report = folder / "junit.xml"
    report.unlink(missing_ok=True)
    program = pathlib.Path(sys.executable).parent / "schemathesis"
    command = [str(program), "run", f"{args.base_url}/openapi.json", "--checks", RULES, "--max-examples", str(args.cases), "--seed", str(args.seed),
               "--continue-on-failure", "--request-timeout", str(60 * PATIENCE), "--suppress-health-check", "all", "--warnings", "off", "--no-shrink",
               "--report", "junit", "--report-junit-path", str(report), "--phases", args.phases]
    name = json.loads(request(args.base_url, "GET", "/v1/models")[2])["data"][0]["id"]
    environment = {**os.environ, "CLIENTS_MODEL": name, "SCHEMATHESIS_HOOKS": "schemathesis_hooks",
                   "PYTHONPATH": str(pathlib.Path(__file__).resolve().parent)}
    with open(folder / "output.txt", "w", encoding="utf-8") as output:
        done = subprocess.run(command, stdout=output, stderr=subprocess.STDOUT, timeout=3500 * PATIENCE, cwd=folder, env=environment)
    text = (folder / "output.txt").read_text(encoding="utf-8", errors="replace")
    if not report.exists():
        CHECKS.append(("schemathesis", lambda _: expect(False, f"it ended with {done.returncode}: {text[-300:]}"), 10))
        return args
    cases = list(xml.etree.ElementTree.parse(report).iter("testcase"))
    CHECKS.append(("operations", lambda _: expect(cases, f"none was tried: {text[-300:]}") or f"{len(cases)} operations", 10))
    for case in cases:
        complaints = [f"{child.get('message')} {child.text}" for child in case if child.tag in ("failure", "error")]
        CHECKS.append((case.get("name"), lambda _, complaints=complaints: expect(not complaints, complaints and complaints[0]), 10))
    CHECKS.append(("after.at_rest", lambda _: at_rest(args.base_url, name), 90))
    return args


def add(parser):
    parser.add_argument("--cases", type=int, default=200, help="requests for each operation [default: %(default)s]")
    parser.add_argument("--seed", type=int, default=1, help="[default: %(default)s]")
    parser.add_argument("--phases", default="examples,coverage,fuzzing", help="[default: %(default)s]")


if __name__ == "__main__":
    main(__doc__, prepare, add)
