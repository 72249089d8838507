#!/usr/bin/env python3
"""The conformance tests of the package llm-comply: chat completions, responses and messages against their schemas.

    run.py llm_comply       (needs requirements/compliance.txt)
"""
import json
import pathlib
import subprocess
import sys

from checks import CHECKS, PATIENCE, Failed, expect, main, request

FORMATS = ("openai-chat", "open-responses", "anthropic")
# What no model here can do, or what the tests themselves call advisory: images, thoughts of models that have none, compaction.
LEFT_OUT = ("image-input", "reasoning-summary", "thinking-display", "compact-")


def results(args, api):
    """The package's results for one format, by test."""
    name = json.loads(request(args.base_url, "GET", "/v1/models")[2])["data"][0]["id"]
    program = pathlib.Path(sys.executable).parent / "llm-comply"
    command = [str(program), "--format", api, "--base-url", f"{args.base_url}/v1", "--api-key", "none", "--model", name, "--json", "--timeout", str(round(60 * PATIENCE))]
    done = subprocess.run(command, capture_output=True, text=True, timeout=600 * PATIENCE)
    try:
        found = json.loads(done.stdout)
        return {row["id"]: row for row in (found["results"] if isinstance(found, dict) else found)}
    except (ValueError, KeyError) as error:
        raise Failed(f"{program.name} ended with {done.returncode}: {(done.stderr or done.stdout)[-300:]}") from error


def prepare(args):
    """Runs all formats and registers a check for each test."""
    for api in FORMATS:
        try:
            rows = results(args, api)
        except Exception as error:  # noqa: BLE001
            CHECKS.append((f"{api}", lambda _, error=error: expect(False, str(error)), 10))
            continue
        for test, row in rows.items():
            if not any(part in test for part in LEFT_OUT):
                CHECKS.append((f"{api}.{test}", lambda _, row=row: judge(row), 10))
    return args


def judge(row):
    expect(row["status"] == "passed", f"{row['status']}: {'; '.join(row.get('errors', []))}")
    return "; ".join(row.get("warnings", []))


if __name__ == "__main__":
    main(__doc__, prepare)
