// What an overview says, section by section.
import { amount, byId, clock, h, percent, setText, show, span, table, tag } from "./dom.js";
import { draw, latest, remember } from "./chart.js";

const CLOSE = 0.1; // as near to the bound as whole bundles often let it be
const FAR = 0.3;
const RESOURCES = { cpu: "CPU", "network in": "network in", "network out": "network out" };
const STATES = { serving: "good", failed: "bad", timed_out: "bad", landed_elsewhere: "fair", stuck: "bad", owned_not_served: "bad", superseded: "fair" };

// Attach has no search and no tokens: what may be done to brokers is in their table.
let explains = true;

export const subject = (name) => (explains
  ? h("button", { type: "button", class: "link", "data-subject": name, "data-key": `subject ${name}` }, name)
  : h("span", {}, name));

export function render(seen, button) {
  setText("cluster", seen.cluster);
  document.title = `${seen.cluster} · loadmanager`;
  setText("leader", `led by ${seen.leader}, term ${seen.epoch}`);
  remember(seen.course, seen.atMs);
  explains = seen.actions.includes("explain");
  byId("search").closest("section").hidden = !explains;
  byId("token-button").hidden = !explains;
  balance(seen, button);
  brokers(seen, button);
  tasks(seen);
  refusals(seen);
  missing(seen);
  decisions(seen);
}

function balance(seen, button) {
  const point = latest();
  const number = byId("number");
  if (!point) {
    number.dataset.level = "";
    setText("number", "–");
    setText("verdict", "Unknown: no round since the leader's term began.");
  } else {
    const [atMs, gap, largest, bound] = point;
    const [level, word] = gap <= CLOSE ? ["good", "Balanced"] : gap <= FAR ? ["fair", "Nearly balanced"] : ["bad", "Not balanced"];
    number.dataset.level = level;
    setText("number", `${Math.round(100 * gap)} % above best`);
    const former = atMs < seen.sinceMs ? " So the former leader saw it last; this one has not finished a round yet." : "";
    setText("verdict", (seen.measure === "use"
      ? `${word}. The fullest broker uses ${percent(largest)} of its CPU or network; no assignment of the current bundles is below ${percent(bound)}.`
      : `${word}. The fullest broker has ${largest.toFixed(2)} times the mean rate; the best possible is ${bound.toFixed(2)}.`) + former);
    draw(byId("course"), seen.measure);
    setText("course-text", "The last hour, as far as it is recorded.");
  }
  setText("why", why(seen));
  const { mode, sinceMs, by, reason } = seen.balancing;
  show(byId("steering"), [mode, sinceMs, by, reason, seen.held, seen.actions], () => {
    const said = mode === "active" ? tag("active", "good") : tag(mode, "fair");
    const told = `${by ? ` by ${by}` : ""}${reason ? `: ${reason}` : ""}`;
    const author = mode === "active" ? [] : [told, ...(sinceMs ? [" (since ", clock(sinceMs), ")"] : [])];
    const modes = { pause: "paused", observe: "observing", resume: "active" };
    const others = Object.keys(modes).filter((one) => modes[one] !== mode && seen.actions.includes(one));
    return [
      h("p", {}, "Rounds: ", said, ...author, seen.held ? ` Held: ${seen.held}.` : ""),
      h("div", { class: "actions" }, ...others.map((one) => button(one, ""))),
    ];
  });
}

function why(seen) {
  const live = seen.tasks.filter((task) => task.live).length;
  if (live) return `${live} ${live === 1 ? "task is" : "tasks are"} under way.`;
  if (seen.unowned) return `${seen.unowned} bundles have no owner and are being placed.`;
  const whole = seen.refusals.find((one) => one.subject === "") ?? seen.refusals[0];
  return whole ? `Nothing is under way. The last round: ${whole.meaning}` : "Nothing is under way.";
}

const METERS = [["CPU", "cpuFraction"], ["in", "bandwidthInFraction"], ["out", "bandwidthOutFraction"], ["memory", "memoryFraction"]];

function use(fraction, name) {
  if (fraction === null) return "–";
  return h("span", {},
    h("meter", { min: 0, max: 1, low: 0.6, high: 0.85, optimum: 0.3, value: Math.min(fraction, 1), "aria-label": name }), ` ${percent(fraction)}`);
}

function brokers(seen, button) {
  setText("brokers-count", seen.brokersInAll > seen.brokers.length
    ? `${seen.brokers.length} scarcest of ${seen.brokersInAll}` : `${seen.brokersInAll}`);
  show(byId("resources"), seen.resources, () => seen.resources.map((one) =>
    h("li", {}, h("strong", {}, RESOURCES[one.resource] ?? one.resource),
      ` highest ${percent(one.highestFraction)} at `, subject(one.broker), `, mean ${percent(one.meanFraction)}`)));
  const rows = seen.brokers.map((one) => ({ ...one, reportAgeS: Math.round(one.reportAgeS / 5) * 5 }));
  const byRate = rows.every((one) => one.largestFraction === null);
  const acts = !explains && seen.actions.includes("drain");
  show(byId("brokers"), [rows, seen.leader, acts], () => table("Brokers, fullest first", [
    ["broker", "", (one) => h("span", {}, subject(one.broker), ...marks(one, seen.leader))],
    ...(byRate ? [] : [["scarcest", "", (one) => use(one.largestFraction, `largest use of ${one.broker}`)]]),
    ...(byRate ? [] : METERS.map(([name, key]) => [name, "figure wide", (one) => percent(one[key])])),
    ["bundles", "figure", (one) => amount(one.bundles)],
    ["topics", "figure wide", (one) => amount(one.topics)],
    ["msg/s", "figure", (one) => amount(one.msgsPerS)],
    ["B/s", "figure wide", (one) => amount(one.bytesPerS)],
    ["report", "figure wide", (one) => (one.reportAgeS < 5 ? "now" : `${span(one.reportAgeS)} ago`)],
    ...(acts ? [["actions", "", (one) => h("div", { class: "actions" }, ...actions(one).map((name) => button(name, one.broker, name === "drain")))]] : []),
  ], rows));
}

const actions = (one) => (one.draining ? ["undrain", "cordon"] : one.cordoned ? ["drain", "uncordon"] : ["drain", "cordon"]);

function marks(one, leader) {
  const found = [];
  if (one.broker === leader) found.push(tag("leads"));
  if (one.draining) found.push(tag("draining", "fair"));
  if (one.cordoned) found.push(tag("cordoned", "fair"));
  if (!one.healthy) found.push(tag("unhealthy", "bad"));
  return found.flatMap((mark) => [" ", mark]);
}

function gain(task) {
  const { gain: found } = task;
  if (!found) return "–";
  const after = found.after === null ? (task.live ? "" : ", measured soon") : `, is ${percent(found.after)}`;
  return `${percent(found.before)} to ${percent(found.expected)} expected${after}`;
}

function pause({ seenBeforeMs, seenAfterMs }) {
  return seenAfterMs ? ` (clients waited at most ${((seenAfterMs - seenBeforeMs) / 1000).toFixed(2)} s)` : "";
}

export function taskTable(caption, rows, withGain = true) {
  return table(caption, [
    ["state", "", (one) => tag(one.state.replaceAll("_", " "), STATES[one.state] ?? "")],
    ["task", "", (one) => h("span", {}, `${one.kind} `, ...one.bundles.flatMap((name) => [subject(name), " "]))],
    ["from and to", "wide", (one) => `${one.source ?? "no owner"} → ${one.target}`],
    ["why", "", (one) => h("span", {}, one.meaning, pause(one), one.note ? h("span", { class: "quiet" }, ` ${one.note}`) : "")],
    ...(withGain ? [["use of the source", "wide", gain]] : []),
    ["since", "figure", (one) => clock(one.endedAtMs ?? one.proposedAtMs)],
  ], rows);
}

function tasks(seen) {
  const live = seen.tasks.filter((task) => task.live);
  setText("tasks-count", `${live.length} under way, ${seen.tasks.length - live.length} ended recently`);
  const rows = seen.tasks.map(({ ageS: _, ...task }) => task);
  show(byId("tasks"), rows, () => (rows.length
    ? taskTable("Live tasks, then ended ones", rows, seen.measure === "use") : h("p", {}, "No task in this leader's term.")));
}

function refusals(seen) {
  show(byId("refusals"), seen.refusals, () => (seen.refusals.length
    ? table("Most frequent reasons first", [
      ["times", "figure", (one) => String(one.count)],
      ["why", "", (one) => h("span", {}, one.meaning, one.takes ? h("span", { class: "quiet" }, ` ${one.takes}`) : "")],
      ["such as", "wide", (one) => h("span", {}, one.subject ? subject(one.subject) : "the round", one.detail ? `: ${one.detail}` : "")],
    ], seen.refusals) : h("p", {}, "Nothing was left alone, or no round has ended yet.")));
}

function missing(seen) {
  show(byId("leads"), [seen.leader, seen.epoch, seen.sinceMs], () =>
    ["", subject(seen.leader), ` leads term ${seen.epoch} since `, clock(seen.sinceMs), "."].map((part) =>
      typeof part === "string" ? document.createTextNode(part) : part));
  show(byId("missing"), seen.missing, () => (seen.missing.length
    ? table("Missing", [
      ["broker", "", (one) => one.broker],
      ["why", "", (one) => one.why],
      ["since", "figure", (one) => (one.sinceMs === null ? "–" : clock(one.sinceMs))],
    ], seen.missing) : h("p", {}, "No broker is missing.")));
}

// Rounds that were left alone for the same reason one after the other are one line.
function joined(decided) {
  const lines = [];
  for (const one of decided) {
    const last = lines.at(-1);
    if (last && !one.subject && !last.subject && last.code === one.code) {
      last.rounds += 1;
      last.firstAtMs = one.atMs;
    } else lines.push({ ...one, rounds: 1, firstAtMs: one.atMs });
  }
  return lines;
}

export function timeline(decided) {
  return h("ol", { class: "timeline" }, ...joined(decided).map((one) => {
    const moved = one.target !== null && one.target !== undefined;
    const way = moved ? ` ${one.source ?? "no owner"} → ${one.target}` : "";
    return h("li", { class: moved ? "moved" : "" }, clock(one.atMs), ` ${one.kind.replaceAll("_", " ")} `,
      one.subject ? subject(one.subject) : one.rounds === 1 ? "the round"
        : h("span", {}, `${one.rounds} rounds, since `, clock(one.firstAtMs)), way, h("span", { class: "quiet" }, ` ${one.meaning} ${one.detail ?? ""}`));
  }));
}

function decisions(seen) {
  show(byId("decisions"), seen.decisions, () => (seen.decisions.length
    ? h("div", { class: "scroll", tabindex: "0", role: "region", "aria-label": "The last decisions" }, timeline(seen.decisions))
    : h("p", {}, "No decision in this leader's term.")));
}
