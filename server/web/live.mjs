// The live view: what GET /metrics says, each second.

import { readMetrics } from "./api.mjs";
import { Chart } from "./chart.mjs";
import { byId, make } from "./dom.mjs";
import { Histories, WINDOW_S } from "./history.mjs";
import { parseMetrics } from "./metrics.mjs";

const INTERVAL_MS = 1000;
/** An answer that takes longer is a server that does not answer. */
const PATIENCE_MS = 5000;

/** With a digit after the point where that says something. */
const short = (number) => number.toFixed(number > 0 && number < 10 ? 1 : 0);
const whole = (number) => (Number.isInteger(number) ? `${number}` : number.toFixed(1));
const percent = (number) => `${short(number)} %`;
const ms = (number) => (number < 1000 ? `${short(number)} ms` : `${(number / 1000).toFixed(2)} s`);

const PERCENTILES = [50, 95, 99];
const percentiles = (name) => PERCENTILES.map((p) => ({ label: `p${p}`, name: `${name}${p}` }));

const CHARTS = [
  {
    title: "Tokens per second",
    series: [{ label: "generated", name: "generatedRate" }, { label: "prompt", name: "promptRate" }],
    format: short,
  },
  { title: "Requests", series: [{ label: "running", name: "running" }, { label: "waiting", name: "waiting" }], format: whole },
  {
    title: "KV cache",
    series: [{ label: "in use", name: "usage" }, { label: "prompt tokens found", name: "hitRate" }],
    format: percent,
    most: 100,
  },
  { title: "Right guesses", series: [{ label: "accepted", name: "acceptance" }], format: percent, most: 100 },
  { title: "Time to first token", series: percentiles("ttft"), format: ms },
  { title: "Time between tokens", series: percentiles("itl"), format: ms },
  { title: "Time in the queue", series: percentiles("queue"), format: ms },
  { title: "Time of whole requests", series: percentiles("e2e"), format: ms },
];

const TILES = [
  { label: "generated / s", name: "generatedRate", format: short },
  { label: "prompt / s", name: "promptRate", format: short },
  { label: "running", name: "running", format: whole },
  { label: "waiting", name: "waiting", format: whole },
  { label: "KV cache in use", name: "usage", format: percent },
  { label: "first token, p95", name: "ttft95", format: ms },
];

/** The view. It begins to ask when it is first shown, and goes on then, so that its charts have no holes. */
export class LiveView {
  #key;
  #histories = new Histories();
  /** The model that is shown; empty for all. */
  #model = "";
  #charts = CHARTS.map((chart) => new Chart(chart));
  #tiles = TILES.map((tile) => ({ ...tile, value: make("dd", {}, "–") }));
  #isRunning = false;

  /** `key()` is the API key to ask with. */
  constructor(key) {
    this.#key = key;
    byId("tiles").append(...this.#tiles.map(({ label, value }) => make("div", {}, make("dt", {}, label), value)));
    byId("charts").append(...this.#charts.map(({ element }) => element));
    byId("window").textContent = `Percentiles and shares are over the last ${WINDOW_S} seconds. A gap is a time without any.`;
    byId("live-model").onchange = ({ target }) => {
      this.#model = target.value;
      this.#charts.forEach((chart) => chart.restyle());
      this.#draw();
    };
    new ResizeObserver(() => this.#charts.forEach((chart) => chart.resize())).observe(byId("charts"));
    matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => {
      this.#charts.forEach((chart) => chart.restyle());
      this.#draw();
    });
  }

  /** The view has become visible. */
  show() {
    this.#draw();
    if (this.#isRunning) return;
    this.#isRunning = true;
    this.#poll();
  }

  async #poll() {
    const begun = performance.now();
    try {
      const text = await readMetrics(this.#key(), AbortSignal.timeout(PATIENCE_MS));
      this.#take(parseMetrics(text));
    } catch (error) {
      const reason = error.name === "TimeoutError" ? "The server did not answer in time." : error.message;
      this.#say(`The metrics cannot be read: ${reason}`);
    }
    setTimeout(() => this.#poll(), Math.max(0, INTERVAL_MS - (performance.now() - begun)));
  }

  #take(samples) {
    if (!samples.has("vllm:generation_tokens_total")) {
      const isOurs = samples.has("taper:http_requests_total");
      return this.#say(isOurs ? "No model is loaded now." : "What the server sends as its metrics are none that this page knows.");
    }
    this.#histories.add(samples, Date.now() / 1000);
    this.#say("");
    this.#offer(this.#histories.models);
    this.#draw();
  }

  /** Lets a reader choose among several models. */
  #offer(models) {
    const choice = byId("live-model");
    byId("live-of").hidden = models.length < 2;
    if (choice.options.length === models.length + 1) return;
    const options = [["", "all of them"], ...models.map((model) => [model, model])];
    choice.replaceChildren(...options.map(([value, label]) => make("option", { value, selected: value === this.#model }, label)));
  }

  #say(message) {
    const notice = byId("live-notice");
    // Said once, not each second.
    if (notice.textContent !== message) notice.textContent = message;
    notice.hidden = message === "";
  }

  #draw() {
    if (byId("live").hidden) return;
    const history = this.#histories.of(this.#model);
    const { last } = history;
    for (const { name, format, value } of this.#tiles) {
      const number = last?.[name] ?? null;
      value.textContent = number === null ? "–" : format(number);
    }
    if (last) this.#charts.forEach((chart) => chart.draw(history.columns(chart.names)));
  }
}
