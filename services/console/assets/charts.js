// The charts: a quarter of an hour in points of two seconds, or a part of the last 30 days. Each has its figures as a table, too.
// Weak spot: uPlot's colours are drawn, so a change of theme makes the charts anew.
"use strict";
const WINDOW_SECONDS = 900;
const NARROWEST_SECONDS = 60;
const DAY_SECONDS = 86400;
const BINARY_STEPS = Array.from({ length: 50 }, (unused, power) => 2 ** power);
const COLOURS = ["--c1", "--c2", "--c3", "--c4", "--c5", "--c6"];

class ChartHistory {
  constructor() { this.times = []; this.series = {}; this.disks = {}; }

  get last_ms() { return this.times.length ? Math.round(this.times[this.times.length - 1] * 1000) : 0; }

  add(document) {
    const { time_ms: times, disks, ...series } = document;
    const known = this.times.length;
    this.times.push(...times.map((time) => time / 1000));
    for (const [name, points] of Object.entries(series)) (this.series[name] ??= []).push(...points);
    for (const [name, points] of Object.entries(disks)) (this.disks[name] ??= Array(known).fill(null)).push(...points);
    for (const name of Object.keys(this.disks)) {
      if (!(name in disks)) delete this.disks[name];
    }
    const first = this.times.findIndex((time) => time > this.times[this.times.length - 1] - WINDOW_SECONDS);
    for (const points of [this.times, ...Object.values(this.series), ...Object.values(this.disks)]) points.splice(0, Math.max(first, 0));
  }
}

// A part of the kept figures as `/api/history` gives it.
const chartedSpan = (document) => {
  const { time_ms: times, step_ms: step, disks, now_ms: now, ...series } = document;
  return { times: times.map((time) => time / 1000), step, disks, series, isLong: true };
};

// The points of `before`, a day earlier, at the times of `history`.
function dayBefore(history, before, name) {
  const first = before.times[0] ?? 0, points = before.series[name] ?? [];
  return history.times.map((time) => points[Math.floor((time - DAY_SECONDS - first) * 1000 / before.step)] ?? null);
}

class Chart {
  // `steps`: how far apart the lines of the y axis may be; null as people count. `lines` gives [[title, points, whether of the day before], …].
  constructor(element, cursor, text, steps, lines) {
    this.element = element;
    this.steps = steps;
    this.cursor = cursor;
    this.text = text;
    this.lines = lines;
    this.names = "";
    this.isLogarithmic = false;
    this.onZoom = () => {};
    this.title = element.parentElement.querySelector("figcaption").textContent;
    const shown = make("details"), scroll = make("div", "scroll");
    this.figures = make("table");
    shown.append(make("summary", "", `${this.title}: figures`), scroll);
    scroll.append(this.figures);
    makeScrollable(scroll, `${this.title}: figures`);
    element.after(shown);
    new ResizeObserver(() => this.resize()).observe(element);
  }

  // `lines` gives [[title, points], …] of a history.
  draw(history) {
    const lines = this.lines(history);
    const names = [this.isLogarithmic, history.isLong, ...lines.map(([title]) => title)].join("\n");
    const shown = (points) => (this.isLogarithmic ? points.map((value) => (value > 0 ? value : null)) : points);
    const data = [history.times, ...lines.map(([, points]) => shown(points))];
    this.describe(lines);
    if (!this.plot || names !== this.names) {
      this.names = names;
      this.make(lines, data, history.isLong);
    } else {
      this.plot.setData(data);
    }
    if (this.plot.cursor.left == null || this.plot.cursor.left < 0) this.plot.setLegend({ idx: Math.max(lines[0]?.[1].findLastIndex((value) => value != null) ?? 0, 0) });
  }

  // What the chart shows, in words and figures, for those who do not see it.
  describe(lines) {
    const rows = lines.map(([title, points]) => {
      const known = points.filter((value) => value != null);
      return [title, ...(known.length ? [known.at(-1), Math.min(...known), known.reduce((sum, value) => sum + value, 0) / known.length, Math.max(...known)].map(this.text) : Array(4).fill(NOTHING))];
    });
    fill(this.figures, [["", "name"], ["last", "number"], ["least", "number"], ["mean", "number"], ["most", "number"]], rows, "nothing");
    this.words = `${this.title}. ${rows.map(([title, last, least, , most]) => `${title}: last ${last}, between ${least} and ${most}`).join("; ")}`;
    if (this.plot) this.plot.ctx.canvas.setAttribute("aria-label", this.words);
  }

  make(lines, data, isLong) {
    this.forget();
    const style = getComputedStyle(document.documentElement);
    const colour = (name) => style.getPropertyValue(name).trim();
    const axis = { stroke: colour("--faint"), grid: { stroke: colour("--line"), width: 1 }, ticks: { show: false }, font: "11px system-ui, sans-serif" };
    const own = lines.filter(([, , isBefore]) => !isBefore).length;
    const series = lines.map(([title, , isBefore], index) => ({
      label: title,
      stroke: colour(COLOURS[index % own % COLOURS.length]),
      fill: own <= 2 && !isBefore && !this.isLogarithmic ? colour(COLOURS[index % COLOURS.length]) + "1c" : undefined,
      width: isBefore ? 1 : 1.6,
      dash: isBefore ? [5, 4] : undefined,
      points: { show: false },
      value: (plot, value) => (value == null ? NOTHING : this.text(value)),
    }));
    this.plot = new uPlot({
      width: this.width(),
      height: 178,
      padding: [8, 24, 0, 0],
      cursor: { sync: { key: this.cursor }, y: false, points: { size: 6 }, drag: { setScale: false }, bind: { dblclick: () => null } },
      hooks: { setSelect: [(plot) => this.onSelect(plot)] },
      tzDate: (time) => uPlot.tzDate(new Date(time * 1000), ZONE),
      legend: { live: true },
      scales: {
        x: { time: true, range: (plot, low, high) => [Math.min(low, high - NARROWEST_SECONDS), high] },
        y: this.isLogarithmic ? { distr: 3, range: (plot, low, high) => (low == null ? [1, 10] : uPlot.rangeLog(low, high, 10, true)) } : { range: (plot, low, high) => [0, Math.max(high * 1.12, 1e-3)] },
      },
      axes: [
        { ...axis, size: isLong ? 40 : 26, space: 72, values: [[86400, "{MM}-{DD}", null, null, null, null, null, null, 1], [3600, "{HH}:{mm}", null, null, isLong ? "\n{MM}-{DD}" : null, null, null, null, 1], [60, "{HH}:{mm}", null, null, isLong ? "\n{MM}-{DD}" : null, null, null, null, 1], [1, "{HH}:{mm}:{ss}", null, null, null, null, null, null, 1]] },
        { ...axis, size: 66, space: 36, ...(this.steps && !this.isLogarithmic && { incrs: this.steps }), values: (plot, ticks) => ticks.map((value) => (value == null ? "" : this.text(value))) },
      ],
      series: [{ label: "time", value: isLong ? "{YYYY}-{MM}-{DD} {HH}:{mm}" : "{HH}:{mm}:{ss}" }, ...series],
    }, data, this.element);
    const { canvas } = this.plot.ctx;
    canvas.setAttribute("role", "img");
    canvas.setAttribute("aria-label", this.words);
    for (const name of this.plot.root.querySelectorAll(".u-legend tr:not(:first-child) th")) {
      const shown = make("button", "legend");
      shown.type = "button";
      shown.append(...name.childNodes);
      name.append(shown);
    }
  }

  onSelect({ select, posToVal }) {
    if (select.width < 8 || !this.plot) return;
    const [from, to] = [select.left, select.left + select.width].map((at) => posToVal(at, "x") * 1000);
    this.plot.setSelect({ left: 0, width: 0, top: 0, height: 0 }, false);
    this.onZoom(from, to);
  }

  width() { return Math.max(this.element.clientWidth, 200); }

  resize() { if (this.plot && this.element.clientWidth) this.plot.setSize({ width: this.width(), height: 178 }); }

  forget() { if (this.plot) this.plot.destroy(); this.plot = null; }
}
