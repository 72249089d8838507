// Lines over time.

import { make } from "./dom.mjs";

/** Pixels of a chart's height. */
const HEIGHT = 170;

function clock(seconds) {
  return new Date(seconds * 1000).toLocaleTimeString("en-GB");
}

/** A chart with a heading. `series` are `{ label, name }`: the name is of a column of the history. */
export class Chart {
  element;
  #plot = null;
  #frame = make("div", { className: "plot" });
  #options;

  constructor({ title, series, format, most }) {
    this.#options = { series, format, most };
    this.element = make("section", { className: "chart" }, make("h2", {}, title), this.#frame);
  }

  /** Names of the columns that it shows. */
  get names() {
    return this.#options.series.map(({ name }) => name);
  }

  /** Draws columns: times in seconds, then one column for each name. Null is a gap. */
  draw(columns) {
    if (this.#plot) this.#plot.setData(columns);
    else this.#plot = this.#make(columns);
    // Where nobody points, the legend has the numbers of now.
    if (this.#plot.cursor.idx === null || this.#plot.cursor.left < 0) this.#plot.setLegend({ idx: columns[0].length - 1 }, false);
  }

  /** Takes the width that there is now. */
  resize() {
    this.#plot?.setSize({ width: this.#width(), height: HEIGHT });
  }

  /** Forgets the drawing, so that the next one has the colours of now. */
  restyle() {
    this.#plot?.destroy();
    this.#plot = null;
  }

  #width() {
    return Math.max(200, this.#frame.clientWidth);
  }

  #make(columns) {
    const style = getComputedStyle(document.documentElement);
    const colour = (name) => style.getPropertyValue(`--${name}`).trim();
    const { series, format, most } = this.#options;
    const value = (_plot, number) => (number === null || number === undefined ? "–" : format(number));
    const axis = { stroke: colour("muted"), grid: { stroke: colour("line"), width: 1 }, ticks: { stroke: colour("line"), width: 1 } };
    const options = {
      width: this.#width(),
      height: HEIGHT,
      padding: [8, 8, 0, 0],
      cursor: { drag: { x: false, y: false } },
      scales: {
        // A minute at least: the first seconds are not drawn out over all of it.
        x: { range: (_plot, least, last) => [Math.min(least, last - 60), last] },
        y: { range: (_plot, _least, largest) => [0, most ?? (largest > 0 ? largest * 1.1 : 1)] },
      },
      axes: [
        { ...axis, space: 90, values: (_plot, times) => times.map(clock) },
        { ...axis, size: 64, values: (_plot, numbers) => numbers.map((number) => format(number)) },
      ],
      series: [
        { label: "time", value: (_plot, time) => (time === null ? "–" : clock(time)) },
        ...series.map(({ label }, place) => ({
          label,
          value,
          stroke: colour(`series-${place + 1}`),
          width: 2,
          points: { show: false },
          spanGaps: false,
        })),
      ],
    };
    // From a script of its own: it is no module.
    return new globalThis.uPlot(options, columns, this.#frame);
  }
}
