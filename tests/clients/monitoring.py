#!/usr/bin/env python3
"""/metrics as Prometheus reads it, and the dashboard beside it. Only Python's standard library, and promtool.

    run.py monitoring       (promtool is in Debian's package `prometheus`; PROMTOOL names another one)
"""
import json
import os
import pathlib
import re
import shutil
import subprocess

from checks import check, equal, expect, main, request

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent
DASHBOARD = ROOT / "deploy" / "grafana.json"
# A metric's name where a query has it, and what histograms append.
NAME = re.compile(r"\b(?:vllm|taper):[a-zA-Z0-9_]+")


class Context:
    """The metrics of a server that has answered something."""

    def __init__(self, args):
        self.url = args.base_url
        for body in ({"prompt": "Once", "max_tokens": 8}, {"prompt": "a b a b a b a b", "max_tokens": 8, "temperature": 0, "n": 2}):
            request(self.url, "POST", "/v1/completions", body)
        _, self.headers, body = request(self.url, "GET", "/metrics")
        self.text = body.decode()
        self.names = set(re.findall(r"^# TYPE (\S+)", self.text, re.MULTILINE))
        self.series = {line.split("{")[0].split(" ")[0] for line in self.text.splitlines() if line and not line.startswith("#")}


@check("metrics.content_type")
def _(t):
    expect(t.headers["content-type"].startswith("text/plain") and "version=0.0.4" in t.headers["content-type"], f"it is {t.headers['content-type']}")


@check("metrics.promtool")
def _(t):
    promtool = os.environ.get("PROMTOOL") or shutil.which("promtool")
    expect(promtool, "there is no promtool (Debian: the package prometheus)")
    done = subprocess.run([promtool, "check", "metrics"], input=t.text, capture_output=True, text=True, timeout=60)
    # vLLM's names have a colon, which promtool's lint keeps for recording rules, and are what dashboards ask for.
    complaints = [line for line in (done.stdout + done.stderr).splitlines() if line.strip() and "should not contain ':'" not in line]
    known = [line for line in complaints if not is_vllms(line)]
    expect(not known, f"{len(known)} complaints, the first: {known[:1]}")
    expect(done.returncode in (0, 3), f"status {done.returncode}")
    return f"{len(t.series)} series; {len(complaints)} remarks on vLLM's own names"


def is_vllms(line):
    """Whether a remark of the linter is about a name that vLLM chose."""
    return line.startswith("vllm:")


@check("metrics.every_series_has_help_and_type")
def _(t):
    helps = set(re.findall(r"^# HELP (\S+) .", t.text, re.MULTILINE))
    equal(helps, t.names, "the names with a HELP")
    bare = [name for name in t.series if name not in t.names and re.sub(r"_(bucket|sum|count)$", "", name) not in t.names]
    equal(bare, [], "the series without a TYPE")


@check("metrics.histograms_add_up")
def _(t):
    for name in re.findall(r"^# TYPE (\S+) histogram", t.text, re.MULTILINE):
        buckets = {}
        for before, bound, after, count in re.findall(rf'^{re.escape(name)}_bucket{{(.*)le="([^"]+)"(.*)}} (\S+)$', t.text, re.MULTILINE):
            buckets.setdefault((before + after.lstrip(",")).strip(","), []).append((bound, float(count)))
        counts = re.findall(rf"^{re.escape(name)}_count{{(.*)}} (\S+)$", t.text, re.MULTILINE)
        equal(set(buckets), {labels for labels, _ in counts}, f"the series of {name}")
        for labels, count in counts:
            bounds, values = zip(*buckets[labels])
            expect(bounds[-1] == "+Inf", f"{name} {{{labels}}} has no +Inf")
            expect(list(values) == sorted(values) and values[-1] == float(count), f"{name} {{{labels}}}: {values} and a count of {count}")


@check("dashboard.is_one")
def _(t):
    dashboard = json.loads(DASHBOARD.read_text(encoding="utf-8"))
    for field in ("title", "uid", "schemaVersion", "panels", "templating", "time"):
        expect(field in dashboard, f"{DASHBOARD.name} has no {field}")
    panels = list(panels_of(dashboard))
    expect(len(panels) >= 5, f"{len(panels)} panels")
    equal(len({panel["id"] for panel in panels}), len(panels), "the number of different ids")
    for panel in panels:
        place, name = panel["gridPos"], panel.get("title")
        expect(name and place["x"] + place["w"] <= 24 and place["w"] > 0 and place["h"] > 0, f"panel {panel['id']} is {name!r} at {place}")


def panels_of(dashboard):
    """All panels, those in rows too."""
    for panel in dashboard["panels"]:
        yield panel
        yield from panel.get("panels", [])


@check("dashboard.asks_for_what_is_there")
def _(t):
    dashboard = json.loads(DASHBOARD.read_text(encoding="utf-8"))
    asked = set()
    for panel in panels_of(dashboard):
        targets = panel.get("targets", [])
        expect(targets or panel["type"] in ("row", "text"), f"panel {panel['title']!r} asks for nothing")
        for target in targets:
            names = set(NAME.findall(target.get("expr", "")))
            expect(names, f"panel {panel['title']!r} asks for no metric of ours: {target.get('expr')!r}")
            asked |= names
    missing = sorted(name for name in asked if name not in t.series)
    equal(missing, [], "the names that /metrics has not")
    return f"{len(asked)} names"


@check("dashboard.overlaps_nothing")
def _(t):
    taken = {}
    for panel in json.loads(DASHBOARD.read_text(encoding="utf-8"))["panels"]:
        place = panel["gridPos"]
        for x in range(place["x"], place["x"] + place["w"]):
            for y in range(place["y"], place["y"] + place["h"]):
                expect((x, y) not in taken, f"{panel['title']!r} lies on {taken.get((x, y))!r}")
                taken[x, y] = panel["title"]


if __name__ == "__main__":
    main(__doc__, Context)
