// The charts: a quarter of an hour in points of two seconds. Weak spot: uPlot's colours are drawn, so a change of theme makes the charts anew.
"use strict";
const WINDOW_SECONDS = 900;
const NARROWEST_SECONDS = 60;
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

class Chart {
  // `steps`: how far apart the lines of the y axis may be; null as people count.
  constructor(element, cursor, text, steps, lines) {
    this.element = element;
    this.steps = steps;
    this.cursor = cursor;
    this.text = text;
    this.lines = lines;
    this.names = "";
    new ResizeObserver(() => this.resize()).observe(element);
  }

  // `lines` gives [[title, points], …] of a history.
  draw(history) {
    const lines = this.lines(history);
    const names = lines.map(([title]) => title).join("\n");
    const data = [history.times, ...lines.map(([, points]) => points)];
    if (!this.plot || names !== this.names) {
      this.names = names;
      this.make(lines, data);
    } else {
      this.plot.setData(data);
    }
    if (this.plot.cursor.left == null || this.plot.cursor.left < 0) this.plot.setLegend({ idx: data[0].length - 1 });
  }

  make(lines, data) {
    this.forget();
    const style = getComputedStyle(document.documentElement);
    const colour = (name) => style.getPropertyValue(name).trim();
    const axis = { stroke: colour("--faint"), grid: { stroke: colour("--line"), width: 1 }, ticks: { show: false }, font: "11px system-ui, sans-serif" };
    const series = lines.map(([title], index) => ({
      label: title,
      stroke: colour(COLOURS[index % COLOURS.length]),
      fill: lines.length <= 2 ? colour(COLOURS[index % COLOURS.length]) + "1c" : undefined,
      width: 1.6,
      points: { show: false },
      value: (plot, value) => (value == null ? NOTHING : this.text(value)),
    }));
    this.plot = new uPlot({
      width: this.width(),
      height: 178,
      padding: [8, 24, 0, 0],
      cursor: { sync: { key: this.cursor }, y: false, points: { size: 6 } },
      legend: { live: true },
      scales: {
        x: { time: true, range: (plot, low, high) => [Math.min(low, high - NARROWEST_SECONDS), high] },
        y: { range: (plot, low, high) => [0, Math.max(high * 1.12, 1e-3)] },
      },
      axes: [
        { ...axis, size: 26, space: 72, values: [[3600, "{HH}:{mm}", null, null, null, null, null, null, 1], [60, "{HH}:{mm}", null, null, null, null, null, null, 1], [1, "{HH}:{mm}:{ss}", null, null, null, null, null, null, 1]] },
        { ...axis, size: 66, space: 36, ...(this.steps && { incrs: this.steps }), values: (plot, ticks) => ticks.map((value) => this.text(value)) },
      ],
      series: [{ label: "time", value: "{HH}:{mm}:{ss}" }, ...series],
    }, data, this.element);
  }

  width() { return Math.max(this.element.clientWidth, 200); }

  resize() { if (this.plot) this.plot.setSize({ width: this.width(), height: 178 }); }

  forget() { if (this.plot) this.plot.destroy(); this.plot = null; }
}
