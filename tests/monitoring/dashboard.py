"""Asks Prometheus each query of a Grafana dashboard; fails for one without data. With a second argument, draws the panels (PNG)."""

import json
import sys
import time
import urllib.parse
import urllib.request

API = "http://127.0.0.1:9090/api/v1/query_range"
SECONDS = 30


def ask(expression):
    for name, value in {"$__rate_interval": "5s", "$instance": ".*", "$device": ".*"}.items():
        expression = expression.replace(name, value)
    now = time.time()
    fields = urllib.parse.urlencode({"query": expression, "start": now - SECONDS, "end": now, "step": 1})
    with urllib.request.urlopen(f"{API}?{fields}") as response:
        return now, json.load(response)["data"]["result"]


def legend(text, labels):
    for name in ("instance", "device", "queue", "worker", "reason", "kind"):
        text = text.replace("{{%s}}" % name, labels.get(name, ""))
    return " ".join(text.split())


def draw(panels, file):
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    pyplot.style.use("dark_background")
    figure = pyplot.figure(figsize=(16, 14))
    height = max(panel["gridPos"]["y"] + panel["gridPos"]["h"] for panel, _ in panels)
    for panel, answers in panels:
        place = panel["gridPos"]
        box = [place["x"] / 24 + 0.03, 1 - (place["y"] + place["h"]) / height + 0.035, place["w"] / 24 - 0.05, place["h"] / height - 0.065]
        if panel["type"] == "stat":
            value = float(answers[0][2][0]["values"][-1][1])
            figure.text(box[0] + box[2] / 2, box[1] + box[3] / 2, f"{value:g}", size=28, ha="center", va="center", color="#73bf69")
            figure.text(box[0] + box[2] / 2, box[1] + box[3] + 0.012, panel["title"], size=10, ha="center")
            continue
        axes = figure.add_axes(box)
        axes.set_title(panel["title"], size=10, loc="left")
        for text, now, series in answers:
            for one in series:
                points = [(float(at) - now, float(value)) for at, value in one["values"]]
                axes.plot(*zip(*points), label=legend(text, one["metric"]), linewidth=1.2)
        axes.set_xlim(-SECONDS, 0)
        axes.set_ylim(bottom=0)
        axes.set_ylabel({"percentunit": "ratio", "cps": "1/s", "pps": "packets/s", "bps": "bit/s"}.get(panel["fieldConfig"]["defaults"]["unit"], "bytes"), size=8)
        axes.tick_params(labelsize=7)
        axes.grid(alpha=0.2)
        axes.legend(fontsize=7, loc="upper left", framealpha=0.4)
    figure.savefig(file, dpi=80)


dashboard = json.load(open(sys.argv[1]))
empty, drawn, asked = [], [], 0
for panel in dashboard["panels"]:
    answers = []
    for target in panel["targets"]:
        now, series = ask(target["expr"])
        asked += 1
        if not series:
            empty.append(f"{panel['title']}: {target['expr']}")
        answers.append((target["legendFormat"], now, series))
    drawn.append((panel, answers))
if empty:
    sys.exit("no data for:\n" + "\n".join(empty))
print(f"  ok  each of {asked} queries of the dashboard has data")
if len(sys.argv) > 2:
    draw(drawn, sys.argv[2])
    print(f"  ok  drawn: {sys.argv[2]}")
