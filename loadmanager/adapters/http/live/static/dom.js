// Elements and figures. Text is only ever set as text: no markup is made of data.

export function byId(id) {
  return document.getElementById(id);
}

// h("td", {class: "figure", onclick: f}, "text", element, ...)
export function h(name, attributes = {}, ...children) {
  const element = document.createElement(name);
  for (const [key, value] of Object.entries(attributes)) {
    if (key.startsWith("on")) element.addEventListener(key.slice(2), value);
    else if (value !== null && value !== undefined && value !== false) element.setAttribute(key, value);
  }
  element.append(...children.filter((child) => child !== null && child !== undefined));
  return element;
}

// Replaces what is shown only where it differs, and keeps the focus on what has the same data-key.
const shown = new WeakMap();
export function show(container, fingerprint, make) {
  const text = JSON.stringify(fingerprint);
  if (shown.get(container) === text) return;
  shown.set(container, text);
  const focused = container.contains(document.activeElement) ? document.activeElement.dataset.key : undefined;
  const scrolled = container.querySelector(".scroll");
  const top = scrolled ? scrolled.scrollTop : 0;
  container.replaceChildren(...[make()].flat());
  const scrolls = container.querySelector(".scroll");
  if (scrolls) scrolls.scrollTop = top;
  if (focused) container.querySelector(`[data-key="${CSS.escape(focused)}"]`)?.focus();
}

export function setText(id, text) {
  const element = byId(id);
  if (element.textContent !== text) element.textContent = text;
}

// columns: [title, class, (row) => text or element]
export function table(caption, columns, rows) {
  const head = columns.map(([title, kind]) => h("th", { scope: "col", class: kind }, title));
  const body = rows.map((row) =>
    h("tr", {}, ...columns.map(([, kind, cell]) => h("td", { class: kind }, cell(row) ?? ""))),
  );
  return h("div", { class: "scroll", tabindex: "0", role: "region", "aria-label": caption },
    h("table", {}, h("caption", {}, caption), h("thead", {}, h("tr", {}, ...head)), h("tbody", {}, ...body)));
}

export const percent = (fraction) => (fraction === null || fraction === undefined ? "–" : `${Math.round(100 * fraction)} %`);

export function amount(value) {
  const size = Math.abs(value);
  if (size >= 1e9) return `${(value / 1e9).toFixed(1)} G`;
  if (size >= 1e6) return `${(value / 1e6).toFixed(1)} M`;
  if (size >= 1e4) return `${(value / 1e3).toFixed(0)} k`;
  return value >= 10 || Number.isInteger(value) ? value.toFixed(0) : value.toFixed(1);
}

export function span(seconds) {
  const s = Math.max(0, Math.round(seconds));
  if (s < 120) return `${s} s`;
  if (s < 7200) return `${Math.round(s / 60)} min`;
  return s < 172800 ? `${Math.round(s / 3600)} h` : `${Math.round(s / 86400)} d`;
}

export function clock(ms) {
  const at = new Date(ms);
  const text = at.toLocaleTimeString([], { hour12: false });
  return h("time", { datetime: at.toISOString(), title: at.toISOString() }, text);
}

export function tag(text, kind = "") {
  return h("span", { class: `tag ${kind}` }, text);
}
