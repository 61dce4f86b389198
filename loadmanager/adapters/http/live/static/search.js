// Any broker, bundle, namespace or topic, with what the leader says of it.
import { amount, byId, h, percent, table, tag } from "./dom.js";
import { ask } from "./stream.js";
import { subject, taskTable, timeline } from "./view.js";

const ADMIN = "/admin/v2/loadmanager";
const BUNDLE = /^[^/]+\/[^/]+\/0x[0-9a-f]{8}_0x[0-9a-f]{8}$/i;
const DOMAIN = /^(persistent|non-persistent):\/\//;
const MOST_BUNDLES = 200;
let asked = 0;

export async function search(text, actionsFor) {
  const wanted = text.trim();
  if (!wanted) return;
  const mine = ++asked;
  byId("subject").value = wanted;
  const found = byId("found");
  found.replaceChildren(h("p", { class: "quiet" }, `Loading ${wanted}`));
  let parts;
  try {
    parts = await answer(wanted, actionsFor);
  } catch (error) {
    parts = [h("p", { role: "alert" }, `${wanted}: ${error.message}`)];
  }
  if (mine === asked) found.replaceChildren(...parts);
}

async function answer(wanted, actionsFor) {
  if (DOMAIN.test(wanted) || (wanted.split("/").length === 3 && !BUNDLE.test(wanted))) return topic(wanted, actionsFor);
  if (wanted.split("/").length === 2) return namespace(wanted);
  return explained(wanted, actionsFor);
}

async function topic(text, actionsFor) {
  const domain = text.match(DOMAIN)?.[1] ?? "persistent";
  const [tenant, name, ...local] = text.replace(DOMAIN, "").split("/");
  if (!tenant || !name || !local.length) throw new Error("expected persistent://tenant/namespace/topic");
  const path = [tenant, name, local.join("/")].map(encodeURIComponent).join("/");
  const range = String(await ask(`/lookup/v2/topic/${domain}/${path}/bundle`)).replaceAll('"', "").trim();
  const bundle = `${tenant}/${name}/${range}`;
  return [h("p", {}, `${domain}://${tenant}/${name}/${local.join("/")} is in the bundle ${bundle}.`), ...await explained(bundle, actionsFor)];
}

async function namespace(name) {
  const query = `namespace=${encodeURIComponent(name)}`;
  const path = name.split("/").map(encodeURIComponent).join("/");
  const [decided, live, bundles] = await Promise.all([
    ask(`${ADMIN}/decisions?limit=30&${query}`), ask(`${ADMIN}/tasks?limit=30&${query}`),
    ask(`/admin/v2/namespaces/${path}/bundles`).catch(() => null),
  ]);
  const edges = bundles?.boundaries ?? [];
  const ranges = edges.slice(0, -1).map((low, row) => `${name}/${low}_${edges[row + 1]}`);
  return [
    h("h3", {}, `Namespace ${name}`),
    ...(bundles ? [h("p", {}, `${ranges.length} bundles`, ranges.length > MOST_BUNDLES ? `, the first ${MOST_BUNDLES}:` : ":"),
      h("ul", {}, ...ranges.slice(0, MOST_BUNDLES).map((one) => h("li", {}, subject(one))))] : []),
    ...(live.tasks.length ? [taskTable(`Tasks of ${name}`, live.tasks, false)] : []),
    ...history(decided.decisions),
  ];
}

async function explained(name, actionsFor) {
  const found = await ask(`${ADMIN}/explain?subject=${encodeURIComponent(name)}`);
  const where = found.kind === "bundle"
    ? `${found.owner ? `owned by ${found.owner}` : "has no owner"}${found.target ? `, being moved to ${found.target}` : ""}`
    : `owns ${amount(found.bundles)} bundles`;
  const { own, mean, highest, lowest } = found.scores;
  return [
    h("h3", {}, `${found.kind === "bundle" ? "Bundle" : "Broker"} ${found.subject}`),
    h("p", {}, `${where}; ${amount(found.msgsPerS ?? 0)} msg/s, ${amount(found.bytesPerS ?? 0)} B/s. `,
      `Score of the broker ${percent(own)}; mean ${percent(mean)}, highest ${percent(highest)}, lowest ${percent(lowest)}.`),
    h("div", { class: "actions" }, ...actionsFor(found)),
    ...(found.grounds.length ? [table("Reasons why it stays", [
      ["about", "", (one) => one.about || "the round"],
      ["why", "", (one) => h("span", {}, one.meaning, one.takes ? h("span", { class: "quiet" }, ` ${one.takes}`) : "")],
      ["figures", "wide", (one) => one.detail],
    ], found.grounds)] : []),
    ...(found.candidates.length ? [candidates(found.candidates)] : []),
    ...(found.tasks.length ? [taskTable("Its tasks", found.tasks, false)] : []),
    ...history(found.decisions),
  ];
}

export function candidates(rows, named = (one) => subject(one.broker)) {
  return table("Candidate brokers", [
    ["broker", "", named],
    ["score", "figure", (one) => percent(one.score)],
    ["with it", "figure", (one) => percent(one.scoreWith)],
    ["verdict", "", (one) => (one.refused ? h("span", {}, tag("no", "fair"), ` ${one.meaning}`) : tag("may take it", "good"))],
  ], rows.slice(0, 50));
}

function history(decided) {
  return decided.length ? [h("h3", {}, "Decisions"), timeline(decided)] : [h("p", {}, "Nothing was decided about it lately.")];
}
