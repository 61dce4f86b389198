// The course of the balance over the last hour, drawn by uPlot.

const HOUR_MS = 3600e3;
const points = new Map();
let chart = null;
let drawn = "";

// Points that this page has seen stay, whether the next leader inherited them or not.
export function remember(course, nowMs) {
  for (const [atMs, gap, largest, bound] of course) points.set(atMs, [gap, largest, bound]);
  for (const atMs of points.keys()) if (atMs < nowMs - HOUR_MS) points.delete(atMs);
}

export function latest() {
  const atMs = Math.max(...points.keys());
  return points.has(atMs) ? [atMs, ...points.get(atMs)] : null;
}

function colour(name) {
  return getComputedStyle(document.documentElement).getPropertyValue(name).trim();
}

export function draw(container, measure) {
  const ordered = [...points.entries()].sort((a, b) => a[0] - b[0]);
  const data = [
    ordered.map(([atMs]) => atMs / 1000),
    ordered.map(([, [, largest]]) => largest),
    ordered.map(([, [, , bound]]) => bound),
  ];
  const print = JSON.stringify(data);
  if (print === drawn) return;
  drawn = print;
  if (chart) {
    chart.setData(data);
    return;
  }
  const unit = measure === "use" ? (value) => `${Math.round(100 * value)} %` : (value) => `${value.toFixed(2)} x`;
  const shown = (_, value) => (value === null || value === undefined ? "–" : unit(value));
  const axis = { stroke: () => colour("--quiet"), grid: { stroke: () => colour("--line"), width: 1 }, ticks: { show: false } };
  chart = new window.uPlot({
    ...size(container),
    cursor: { y: false },
    scales: { y: { range: (_, low, high) => [0, Math.max(high * 1.1, 0.01)] } },
    axes: [{ ...axis, space: 76, values: (_, ticks) => times(ticks) }, { ...axis, size: 56, values: (_, ticks) => ticks.map(unit) }],
    series: [
      { label: "time", value: (_, value) => (value === null || value === undefined ? "–" : times([value, value + 1])[0]) },
      { label: "fullest broker", stroke: () => colour("--bar"), width: 2, value: shown },
      { label: "best possible", stroke: () => colour("--bound"), width: 2, dash: [6, 4], value: shown },
    ],
  }, data, container);
  new ResizeObserver(() => chart.setSize(size(container))).observe(container);
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => chart.redraw());
}

function times(ticks) {
  const seconds = ticks.length > 1 && ticks[1] - ticks[0] < 60;
  const form = { hour: "2-digit", minute: "2-digit", hour12: false, ...(seconds ? { second: "2-digit" } : {}) };
  return ticks.map((tick) => new Date(1000 * tick).toLocaleTimeString([], form));
}

function size(container) {
  return { width: Math.max(container.clientWidth, 200), height: container.clientWidth < 500 ? 150 : 190 };
}
