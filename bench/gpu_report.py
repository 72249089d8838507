#!/usr/bin/env python3
"""One page and one JSON file of a run of gpu.sh: bench/gpu_report.py DIR

Reads DIR/steps.tsv, DIR/*.jsonl and DIR/*.log, whatever there is of them, and writes DIR/report.json (steps, rows, comparisons, goals,
what is absent) and DIR/report.html (the same with plots). Only Python's standard library. Every row gets `us`, microseconds of a
call, and `share_of_run`, its speed as a share of the best read bandwidth that any step measured.
"""
import html
import json
import pathlib
import sys

HERE = pathlib.Path(__file__).resolve().parent
COLORS = 13
# Arms of `taper bench`; what else has an arm is a peer.
OURS = {"taper", "online", "calibrated", "bounded", "naive", "three-pass", "warp", "block", "chunks", "cooperative", "reads"}

# What is to be reached on an H200: the item, the bench, the shape (of a model the case, and which size it is for), how it is counted,
# and three levels. Shares are of the read bandwidth, "us" is at most, "ratio" is the fastest peer's time over ours.
GOALS = [
    ("read bandwidth, GB/s", "bandwidth", "", "gbps", (0, 4000, 4300)),
    ("attention 32/8x128, 8 x 32768 keys", "attention", "32/8x128 b8@32768", "share", (0.85, 0.92, 0.96)),
    ("attention 32/8x128, 32 x 8192 keys", "attention", "32/8x128 b32@8192", "share", (0.85, 0.92, 0.96)),
    ("attention 32/8x128, 8 x 4096 keys", "attention", "32/8x128 b8@4096", "share", (0.70, 0.78, 0.85)),
    ("attention 32/8x128, 32768 keys", "attention", "32/8x128 b1@32768", "share", (0.68, 0.76, 0.85)),
    ("attention 32/8x128, 4096 keys, us", "attention", "32/8x128 b1@4096", "us", (14, 10, 8)),
    ("attention 32/8x128, 1024 keys, us", "attention", "32/8x128 b1@1024", "us", (10.5, 7, 5)),
    ("one row, 28672x4096", "gemm", "BF16 28672x4096 M=1", "share", (0.85, 0.90, 0.94)),
    ("one row, 4096x14336", "gemm", "BF16 4096x14336 M=1", "share", (0.85, 0.90, 0.94)),
    ("one row, 4096x4096", "gemm", "BF16 4096x4096 M=1", "share", (0.70, 0.76, 0.88)),
    ("one row, 2048x2048", "gemm", "BF16 2048x2048 M=1", "share", (0.50, 0.58, 0.75)),
    ("8 rows, 12288x4096", "gemm", "BF16 12288x4096 M=8", "share", (0.80, 0.88, 0.92)),
    ("8 rows, 28672x4096 against the best", "gemm", "BF16 28672x4096 M=8", "ratio", (1.0, 1.15, 1.3)),
    ("16 rows, 28672x4096 against the best", "gemm", "BF16 28672x4096 M=16", "ratio", (1.0, 1.10, 1.2)),
    ("64 rows, 28672x4096 against the best", "gemm", "BF16 28672x4096 M=64", "ratio", (1.0, 1.10, 1.2)),
    ("decoding, a model of at most 4 GB, 1024 keys", "model", "small tg64@1024", "share", (0.64, 0.75, 0.87)),
    ("decoding, a larger one, 1024 keys", "model", "large tg64@1024", "share", (0.79, 0.86, 0.92)),
    ("decoding, 1024 keys, against the best", "model", "tg64@1024", "ratio", (1.0, 1.3, 1.5)),
    ("8 sequences, 1024 keys, against the best", "model", "b8@1024", "ratio", (1.1, 1.3, 1.5)),
    ("32 sequences, 1024 keys, against the best", "model", "b32@1024", "ratio", (1.1, 1.3, 1.5)),
]
LARGE = 4e9


def arm_of(row):
    params = row.get("params", {})
    return params.get("arm") or params.get("network") or params.get("scheme") or params.get("form") or "taper"


def is_ours(row):
    """Rows of peers come from gpu_peers.py, and those that `taper bench` measured beside its own say which they are."""
    return not row["step"].startswith("peers-") and arm_of(row) in OURS


def call_us(row):
    """Microseconds of a call of a row, by its unit."""
    params, median = row.get("params", {}), row.get("median")
    if "us_per_call" in params:
        return params["us_per_call"]
    if not median:
        return None
    if row.get("unit") == "GFLOP/s" and {"n", "k", "m"} <= params.keys():
        return 2e-3 * params["n"] * params["k"] * params["m"] / median
    if row.get("unit") == "us":
        return median
    if row.get("unit") == "tokens/s":
        return 1e6 * (params.get("n", 1) if params.get("kind") == "batch" else 1) / median
    return None


def shape_of(row):
    """What a row was measured on, the same for ours and for peers."""
    params, bench = row.get("params", {}), row["bench"]
    if bench == "gemm" and "m" in params:
        return f"{params.get('type', '')} {params['n']}x{params['k']} M={params['m']}"
    if bench == "attention" and "keys" in params:
        return f"{params['heads']} b{params['batch']}@{params['keys']}"
    if bench == "softmax" and "len" in params:
        return f"{params.get('rows_per_call', 1)} rows of {params['len']}"
    if bench == "model" and "kind" in params:
        name = "b" if params["kind"] == "batch" else "tg" if params["kind"] == "decode" else "pp"
        return f"{pathlib.Path(str(params.get('model', ''))).name.removesuffix('.gguf')} {name}{params['n']}@{params['depth']}"
    return row["case"]


def read_rows(folder):
    """Rows of all steps; lines that are none, as of a step that was killed, are left out and counted."""
    rows, bad = [], 0
    for path in sorted(folder.glob("*.jsonl")):
        for line in path.read_text(encoding="utf-8", errors="replace").splitlines():
            try:
                row = json.loads(line)
                row = {**row, "step": path.stem, "median": float(row["median"]), "bench": str(row["bench"]), "case": str(row["case"])}
            except (ValueError, KeyError, TypeError):
                bad += 1
                continue
            row.update(us=call_us(row), shape=shape_of(row), arm=arm_of(row), ours=is_ours(row),
                       place=row.get("params", {}).get("place", "cold"))
            rows.append(row)
    speeds = [row["gbps"] for row in rows if row["bench"] == "bandwidth" and row.get("gbps")]
    ceiling = max(speeds, default=None)
    for row in rows:
        is_cold = row["place"] not in ("warm", "cached")
        row["share_of_run"] = row["gbps"] / ceiling if ceiling and row.get("gbps") and is_cold else None
    return rows, ceiling, bad


def read_steps(folder):
    path = folder / "steps.tsv"
    lines = path.read_text(encoding="utf-8", errors="replace").splitlines() if path.exists() else []
    fields = [line.split("\t", 3) for line in lines]
    return [dict(zip(("step", "state", "seconds", "why"), each)) for each in fields if len(each) == 4]


def read_absent(folder):
    """What gpu_peers.py says it left out: reason by library or arm would be long, so equal lines are said once."""
    lines = {}
    for path in sorted(folder.glob("*.log")):
        for line in path.read_text(encoding="utf-8", errors="replace").splitlines():
            if line.startswith("absent: "):
                what, _, why = line[8:].partition(": ")
                lines.setdefault((path.stem, why), []).append(what)
    return [{"step": step, "why": why, "cases": cases} for (step, why), cases in lines.items()]


def compare(rows):
    """Per bench, shape and place the fastest of ours and of the peers."""
    groups = {}
    for row in rows:
        is_of_work = row["bench"] in ("gemm", "attention", "softmax", "model") and row["arm"] != "reads"
        if is_of_work and row["us"] and not row.get("void") and " against " not in row["case"]:
            groups.setdefault((row["bench"], row["shape"], row["place"]), []).append(row)
    found = []
    for (bench, shape, place), group in groups.items():
        best = {}
        for side in (True, False):
            of_side = [row for row in group if row["ours"] == side]
            best[side] = min(of_side, key=lambda row: row["us"], default=None)
        ours, peer = best[True], best[False]
        found.append({
            "bench": bench, "shape": shape, "place": place,
            "ours": ours and ours["arm"], "ours_us": ours and ours["us"], "ours_share": ours and ours["share_of_run"],
            "peer": peer and peer["arm"], "peer_us": peer and peer["us"], "peer_share": peer and peer["share_of_run"],
            "ratio": peer["us"] / ours["us"] if ours and peer else None, "bytes": (ours or peer).get("bytes")})
    return found


def is_of_goal(goal, each):
    """Whether a comparison is what a goal is about: operands from memory, and of models that of the size."""
    _, bench, shape, _, _ = goal
    if (each["bench"], each["place"] == "warm") != (bench, False):
        return False
    if bench != "model":
        return each["shape"] == shape
    size, _, case = shape.rpartition(" ")
    return each["shape"].endswith(" " + case) and size in ("", "large" if (each["bytes"] or 0) > LARGE else "small")


def judge(rows, comparisons, ceiling):
    """The goals, each with our figure, the best peer's and which level ours reaches."""
    judged = []
    for goal in GOALS:
        item, _, _, by, levels = goal
        # Where there are several, of models, the one that ours was measured on.
        matches = sorted((each for each in comparisons if is_of_goal(goal, each)), key=lambda each: each["ours_us"] is None)
        match = matches[0] if matches else {}
        if by == "gbps":
            speeds = [row["gbps"] for row in rows if row["bench"] == "bandwidth" and row["step"] == "bandwidth" and row.get("gbps")]
            ours, peer = max(speeds, default=None), ceiling
        elif by == "ratio":
            ours, peer = match.get("ratio"), None
        else:
            ours, peer = match.get(f"ours_{by}"), match.get(f"peer_{by}")
        reached = sum(ours <= level if by == "us" else ours >= level for level in levels) if ours is not None else None
        verdict = "not measured" if reached is None else ("missed", "must", "good", "record")[reached]
        judged.append({"item": item, "by": by, "levels": levels, "ours": ours, "peer": peer, "verdict": verdict})
    return judged


# The page.

def digits(value):
    if value is None:
        return ""
    return f"{value:.0f}" if abs(value) >= 1000 else f"{value:.1f}" if abs(value) >= 100 else f"{value:.2f}"


def percent(value):
    return "" if value is None else f"{100 * value:.0f} %"


def plot(title, x_name, y_name, series, level=None):
    """A figure: lines over equally spaced x, and beside them their figures. `series` is name to {x: y}."""
    series = {name: points for name, points in series.items() if points}
    xs = sorted({x for points in series.values() for x in points})
    if not xs:
        return ""
    width, height, left, right, top, bottom = 640, 340, 64, 30, 12, 44
    highest = 1.06 * max([y for points in series.values() for y in points.values()] + ([level] if level else [])) or 1.0
    place_x = lambda x: left + (width - left - right) * (xs.index(x) / max(1, len(xs) - 1))
    place_y = lambda y: height - bottom - (height - top - bottom) * y / highest
    parts = []
    for tick in range(6):
        y = highest * tick / 5
        parts.append(f'<path stroke="var(--grid)" d="M{left} {place_y(y):.1f}H{width - right}"/>'
                     f'<text x="{left - 8}" y="{place_y(y) + 4:.1f}" text-anchor="end">{digits(y) if highest < 10 else f"{y:.0f}"}</text>')
    parts += [f'<text x="{place_x(x):.1f}" y="{height - bottom + 18}" text-anchor="middle">{x:g}</text>' for x in xs]
    parts.append(f'<text x="{(left + width - right) / 2:.0f}" y="{height - 6}" text-anchor="middle">{html.escape(x_name)}</text>')
    if level:
        parts.append(f'<path stroke="currentColor" stroke-dasharray="6 5" d="M{left} {place_y(level):.1f}H{width - right}"/>')
    for index, points in enumerate(series.values()):
        color = f"var(--s{index % COLORS})"
        at = [(place_x(x), place_y(y)) for x, y in sorted(points.items())]
        parts.append(f'<path fill="none" stroke="{color}" stroke-width="2" d="M{" ".join(f"{x:.1f} {y:.1f}" for x, y in at)}"/>')
        parts += [f'<circle cx="{x:.1f}" cy="{y:.1f}" r="3" fill="{color}"/>' for x, y in at]
    svg = f'<svg viewBox="0 0 {width} {height}" font-size="12" fill="currentColor">{"".join(parts)}</svg>' if len(xs) > 1 else ""
    legend = [[f'<td class="text key" style="--c:var(--s{index % COLORS})">{html.escape(name)}</td>'] +
              [f"<td>{digits(points.get(x))}</td>" for x in xs] for index, (name, points) in enumerate(series.items())]
    if level:
        legend.append([f'<td class="text level">read bandwidth</td><td colspan="{len(xs)}" class="text">{digits(level)}</td>'])
    head = f'<th class="text">{html.escape(x_name)}</th>' + "".join(f"<th>{x:g}</th>" for x in xs)
    body = "".join(f"<tr>{''.join(cells)}</tr>" for cells in legend)
    return (f'<figure><figcaption>{html.escape(title)}, {html.escape(y_name)}</figcaption>{svg}<div class="rows"><table><thead><tr>{head}'
            f"</tr></thead><tbody>{body}</tbody></table></div></figure>\n")


def table(heads, rows, wrong=lambda row: False):
    """`heads` are names, those of text with a leading `<`."""
    texts = [name.startswith("<") for name in heads]
    cell = lambda kind, text, value: f'<{kind}{" class=text" if text else ""}>{html.escape(str(value))}</{kind}>'
    head = "".join(cell("th", text, name.lstrip("<")) for name, text in zip(heads, texts))
    lines = (f'<tr{" class=void" if wrong(row) else ""}>{"".join(cell("td", text, each) for each, text in zip(row, texts))}</tr>\n'
             for row in rows)
    return f'<div class="rows"><table><thead><tr>{head}</tr></thead><tbody>\n{"".join(lines)}</tbody></table></div>\n'


def plots(rows, ceiling):
    """Per kind of shape a plot of ours and the peers', cold."""
    wanted = {"gemm": ("rows M", "m", lambda p: f"{p.get('type', '')} {p['n']}x{p['k']}", "GB/s"),
              "attention": ("keys", "keys", lambda p: f"attention {p['heads']}, {p['batch']} sequences", "GB/s"),
              "softmax": ("length", "len", lambda p: f"softmax, {'one row' if p.get('rows_per_call', 1) == 1 else 'many rows'}", "GB/s"),
              "model": ("sequences", "n", lambda p: f"decoding, {p.get('model', '')}, depth {p.get('depth', 0)}", "tokens/s")}
    figures = {}
    for row in rows:
        params = row.get("params", {})
        if row["bench"] not in wanted or wanted[row["bench"]][1] not in params or row["place"] in ("warm", "cached"):
            continue
        x_name, x, title, unit = wanted[row["bench"]]
        y = row["median"] if unit == "tokens/s" and row.get("unit") == unit else row.get("gbps")
        if y is None or " against " in row["case"] or row.get("void"):
            continue
        # One sequence is a batch of one; a prompt is another thing.
        at = {"decode": 1, "prompt": None}.get(params.get("kind"), params[x])
        if at is not None:
            name = f"{'taper ' if row['ours'] and row['arm'] != 'taper' else ''}{row['arm']}"
            figures.setdefault((row["bench"], title(params), x_name, unit), {}).setdefault(name, {})[at] = y
    return "".join(plot(title, x_name, unit, dict(sorted(series.items(), key=lambda each: not each[0].startswith("taper"))),
                        ceiling if unit == "GB/s" else None)
                   for (_, title, x_name, unit), series in figures.items())


def page(report):
    style = HERE.parent / "crates/bench/src/report.css"
    css = style.read_text(encoding="utf-8") if style.exists() else ""
    machines = sorted({row.get("machine", "?") for row in report["rows"]})
    commits = sorted({row.get("commit", "?") for row in report["rows"]})
    facts = [("machine", ", ".join(machines)), ("commit", ", ".join(commits))]
    if report["read_bandwidth"]:
        facts.append(("read bandwidth", f"{report['read_bandwidth']:.0f} GB/s"))
    parts = ["<!doctype html>\n<html lang=en>\n<meta charset=utf-8>\n<meta name=viewport content='width=device-width'>\n<title>taper on a GPU</title>",
             f"<style>\n{css}</style>\n<h1>taper on a GPU</h1>\n<dl>"]
    parts += [f"<div><dt>{name}</dt><dd>{html.escape(value)}</dd></div>" for name, value in facts]
    parts.append("</dl>\n<h2>Steps</h2>\n")
    parts.append(table(["<step", "<state", "seconds", "<last words"], [list(step.values()) for step in report["steps"]],
                       lambda row: row[1] == "failed"))
    parts.append("<h2>Goals</h2>\n<p>Shares are of the read bandwidth of the run; ratios are the fastest peer's time over ours.</p>\n")
    show = lambda goal, value: percent(value) if goal["by"] == "share" else digits(value)
    parts.append(table(["<goal", "must", "good", "record", "ours", "best peer", "<reached"],
                       [[goal["item"], *(show(goal, level) for level in goal["levels"]), show(goal, goal["ours"]), show(goal, goal["peer"]),
                         goal["verdict"]] for goal in report["goals"]], lambda row: row[-1] == "missed"))
    parts.append(plots(report["rows"], report["read_bandwidth"]))
    parts.append("<h2>Ours and the fastest peer</h2>\n")
    parts.append(table(["<bench", "<shape", "<place", "<ours", "us", "share", "<peer", "us", "share", "peer / ours"],
                       [[each["bench"], each["shape"], each["place"], each["ours"] or "", digits(each["ours_us"]), percent(each["ours_share"]),
                         each["peer"] or "", digits(each["peer_us"]), percent(each["peer_share"]), digits(each["ratio"])]
                        for each in report["comparisons"]], lambda row: bool(row[-1]) and float(row[-1]) < 1))
    if report["absent"]:
        parts.append("<h2>Absent</h2>\n")
        parts.append(table(["<step", "<why", "<what"],
                           [[each["step"], each["why"], ", ".join(each["cases"][:4]) + (f" and {len(each['cases']) - 4} more"
                             if len(each["cases"]) > 4 else "")] for each in report["absent"]]))
    parts.append("<h2>All rows</h2>\n")
    parts.append(table(["<step", "<case", "median", "p10", "p90", "<unit", "us", "GB/s", "share"],
                       [[row["step"], row["case"], *(digits(row.get(name)) for name in ("median", "p10", "p90")), row.get("unit", ""),
                         digits(row["us"]), digits(row.get("gbps")), percent(row["share_of_run"]) + (" void" if row.get("void") else "")]
                        for row in report["rows"]], lambda row: row[-1].endswith("void")))
    return "".join(parts) + "</html>\n"


def main():
    if len(sys.argv) != 2 or sys.argv[1].startswith("-"):
        raise SystemExit(__doc__)
    folder = pathlib.Path(sys.argv[1])
    rows, ceiling, bad = read_rows(folder)
    comparisons = compare(rows)
    report = {"steps": read_steps(folder), "read_bandwidth": ceiling, "goals": judge(rows, comparisons, ceiling),
              "comparisons": comparisons, "absent": read_absent(folder), "unreadable_lines": bad, "rows": rows}
    (folder / "report.json").write_text(json.dumps(report) + "\n", encoding="utf-8")
    (folder / "report.html").write_text(page(report), encoding="utf-8")
    if bad:
        print(f"{bad} lines are no rows")
    print(f"{len(rows)} rows, {len(comparisons)} shapes")


if __name__ == "__main__":
    main()
