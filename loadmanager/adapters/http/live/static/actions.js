// What people may have done: each with what would come of it before, and what came of it after.
import { amount, byId, h, percent, span, table } from "./dom.js";
import { candidates } from "./search.js";
import { ask } from "./stream.js";

const ADMIN = "/admin/v2/loadmanager";
const WAIT_MS = 2000;
const MOST_MOVES = 50;

const WORDS = {
  pause: ["Pause rounds", "Rounds move and split nothing until they are resumed. Bundles without an owner are still placed, and draining brokers are still drained."],
  observe: ["Only observe", "Rounds decide and record their decisions, but move nothing."],
  resume: ["Resume rounds", "Rounds move bundles again."],
  unload: ["Unload", "The bundle moves to the broker that the leader chooses, or to the one given below; its clients are interrupted briefly."],
  split: ["Split", "The bundle is split at the position that the configured algorithm chooses. The new bundles are placed by the leader."],
  drain: ["Drain", "The leader moves all bundles off this broker, a few at a time, and places none on it until the drain ends."],
  undrain: ["End the drain", "The broker takes bundles again."],
  cordon: ["Cordon", "The broker takes no bundles until it is uncordoned, and is not emptied. A drain of it ends."],
  uncordon: ["Uncordon", "The broker takes bundles again."],
};

const encoded = (name) => name.split("/").map(encodeURIComponent).join("/");

export function button(action, subject, dangerous = false) {
  return h("button", {
    type: "button", class: dangerous ? "danger" : "", "data-key": `${action} ${subject}`,
    onclick: () => open(action, subject),
  }, WORDS[action][0]);
}

// The buttons for what an explanation is about, as far as this cluster can be asked for them.
export function actionsFor(answer, allowed) {
  const names = answer.kind === "bundle" ? ["unload", "split"] : ["drain", "undrain", "cordon", "uncordon"];
  return names.filter((name) => allowed.includes(name)).map((name) => button(name, answer.subject, name === "drain"));
}

function open(action, subject) {
  const [title, text] = WORDS[action];
  const dialog = byId("action");
  const before = h("div", {}, h("p", { class: "quiet" }, "Loading the preview"));
  const outcome = h("div", { role: "status" });
  const reason = h("input", { id: "reason", maxlength: 200, autocomplete: "off" });
  const target = h("input", { id: "target", autocomplete: "off", spellcheck: "false" });
  const go = h("button", { type: "submit" }, title);
  const form = h("form", { method: "dialog" },
    ...(action === "unload" ? [h("p", {}, h("label", { for: "target" }, "Target broker, empty for the leader's choice "), target)] : []),
    ...(["pause", "observe", "resume", "drain", "cordon"].includes(action)
      ? [h("p", {}, h("label", { for: "reason" }, "Reason (recorded) "), reason)] : []),
    h("div", { class: "actions" }, go, h("button", { type: "button", onclick: () => dialog.close() }, "Close")));
  form.addEventListener("submit", async (event) => {
    event.preventDefault();
    go.disabled = true;
    outcome.replaceChildren(h("p", {}, "Requested; waiting for the result"));
    try {
      outcome.replaceChildren(...await carryOut(action, subject, { reason: reason.value, target: target.value.trim() }, outcome));
    } catch (error) {
      go.disabled = false;
      outcome.replaceChildren(h("p", { role: "alert" }, `Failed: ${error.message}`));
    }
  });
  dialog.replaceChildren(h("h2", { id: "action-title" }, subject ? `${title}: ${subject}` : title), h("p", {}, text), before, form, outcome);
  dialog.showModal();
  plan(action, subject).then((parts) => before.replaceChildren(...parts))
    .catch((error) => before.replaceChildren(h("p", { class: "quiet" }, `No preview: ${error.message}`)));
}

async function plan(action, subject) {
  if (["pause", "observe", "resume"].includes(action)) {
    const answer = await ask(`${ADMIN}/plan?limit=1`);
    const moves = answer.moves.slice(0, MOST_MOVES);
    const gain = answer.optimality && answer.withMoves
      ? ` The fullest broker is at ${percent(answer.optimality.largest)}, and would be at ${percent(answer.withMoves.largest)} with them.` : "";
    return [h("p", {}, `A round would now make ${answer.moves.length} moves.${answer.moves.length ? gain : ""}`),
      ...(moves.length ? [table("Moves of a round now", [
        ["bundle", "", (one) => one.bundle], ["from and to", "", (one) => `${one.source} → ${one.target}`], ["why", "wide", (one) => one.meaning],
      ], moves)] : [])];
  }
  if (["drain", "undrain", "cordon", "uncordon"].includes(action)) {
    const { bundlesLeft, marked } = await ask(`${ADMIN}/brokers/${encodeURIComponent(subject)}`);
    const mark = marked ? `; it is ${marked.drain ? "draining" : "cordoned"} since ${new Date(marked.sinceMs).toLocaleString()}${marked.by ? ` by ${marked.by}` : ""}${marked.reason ? `: ${marked.reason}` : ""}` : "";
    return [h("p", {}, `${subject} has ${amount(bundlesLeft)} bundles${mark}.`)];
  }
  const answer = await ask(`${ADMIN}/explain?subject=${encodeURIComponent(subject)}`);
  return [h("p", {}, `${answer.owner ? `${answer.owner} owns it` : "It has no owner"}; ${amount(answer.msgsPerS ?? 0)} msg/s, ${amount(answer.bytesPerS ?? 0)} B/s.`),
    ...(action === "unload" && answer.candidates.length ? [candidates(answer.candidates, (one) => one.broker)] : [])];
}

async function carryOut(action, subject, { reason, target }, outcome) {
  const note = new URLSearchParams({ by: "live page", reason });
  if (["pause", "observe", "resume"].includes(action)) {
    await ask(`${ADMIN}/balancing/${action}?${note}`, "PUT");
    const { mode } = await ask(`${ADMIN}/balancing`);
    return [h("p", {}, `Rounds are ${mode} now, for this and every later leader.`)];
  }
  if (action === "unload") {
    const query = target ? `?${new URLSearchParams({ destinationBroker: target })}` : "";
    const answer = await ask(`${ADMIN}/namespaces/${encoded(subject)}/unload${query}`, "PUT");
    return [h("p", {}, answer.target ? `${answer.source ?? "no owner"} → ${answer.target}, in ${answer.tookS.toFixed(1)} s.` : "It has no owner now.")];
  }
  if (action === "split") {
    await ask(`/admin/v2/namespaces/${encoded(subject)}/split`, "PUT");
    const [low, high] = subject.split("/")[2].split("_");
    const { boundaries } = await ask(`/admin/v2/namespaces/${encoded(subject.split("/").slice(0, 2).join("/"))}/bundles`);
    const parts = boundaries.slice(boundaries.indexOf(low), boundaries.indexOf(high) + 1);
    return [h("p", {}, `It is split into ${parts.slice(0, -1).map((edge, row) => `${edge}_${parts[row + 1]}`).join(", ")}.`)];
  }
  const path = `${ADMIN}/brokers/${encodeURIComponent(subject)}`;
  if (action.startsWith("un")) {
    await ask(`${path}/${action.slice(2)}`, "DELETE");
    return [h("p", {}, "It takes bundles again.")];
  }
  if (action === "cordon") {
    await ask(`${path}/cordon?${note}`, "PUT");
    return [h("p", {}, "It takes no bundles until it is uncordoned.")];
  }
  await ask(`${path}/drain?${note}`, "PUT");
  const began = performance.now();
  for (;;) {
    const state = await ask(path);
    const after = span((performance.now() - began) / 1000);
    if (!state.bundlesLeft && (state.draining || !state.registered)) return [h("p", {}, `It is empty, after ${after}.`)];
    if (!byId("action").open) return [];
    if (!state.marked) return [h("p", {}, `The drain was ended meanwhile; ${amount(state.bundlesLeft)} bundles are left.`)];
    const stay = Object.entries(state.stay ?? {}).map(([why, count]) => ` ${count} stay: ${why}.`).join("");
    outcome.replaceChildren(h("p", {}, `${amount(state.bundlesLeft)} bundles left after ${after}.${stay} The drain continues if this is closed.`));
    await new Promise((resolve) => setTimeout(resolve, WAIT_MS));
  }
}
