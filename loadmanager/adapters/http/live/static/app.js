// The live page: joins the stream, the sections and the search.
import { actionsFor, button } from "./actions.js";
import { byId, setText, span } from "./dom.js";
import { follow, hasToken, useToken } from "./stream.js";
import { search } from "./search.js";
import { render } from "./view.js";

const STALE_S = 15;
let seenAt = 0;
let lost = "";
let overview = null;

const stream = follow({
  onEvent(kind, value) {
    lost = "";
    setText("served-by", value.servedBy);
    byId("token-form").hidden = true;
    if (kind === "overview") {
      seenAt = performance.now();
      overview = value.overview;
      byId("trouble").hidden = true;
      render(overview, button);
    } else {
      trouble(value.reason);
    }
    connection();
  },
  onLost(reason) {
    lost = reason;
    connection();
  },
  onUnauthorized(reason) {
    lost = "not allowed";
    askToken(hasToken() ? `The token is not accepted: ${reason}` : reason);
    connection();
  },
});

function explain(name) {
  search(name, (answer) => actionsFor(answer, overview?.actions ?? []));
}

function trouble(reason) {
  setText("trouble", `No overview: ${reason}`);
  byId("trouble").hidden = false;
}

function connection() {
  const element = byId("connection");
  const ageS = (performance.now() - seenAt) / 1000;
  const stale = !seenAt || ageS > STALE_S;
  element.dataset.state = lost || stale ? "lost" : "live";
  document.body.classList.toggle("stale", Boolean(seenAt) && (Boolean(lost) || stale));
  const age = seenAt ? `, last seen ${span(10 * Math.floor(ageS / 10))} ago` : ""; // read aloud when it changes
  setText("connection", lost ? `Reconnecting (${lost})${stale ? age : ""}` : stale ? `No updates${age}` : "Live");
}

function askToken(reason) {
  const form = byId("token-form");
  if (byId("token-reason").textContent !== reason) setText("token-reason", reason);
  if (!form.hidden) return;
  form.hidden = false;
  byId("token").focus();
}

byId("token-button").addEventListener("click", () => askToken("Token of this page:"));
byId("token-form").addEventListener("submit", (event) => {
  event.preventDefault();
  useToken(byId("token").value);
  byId("token").value = "";
  setText("token-reason", "Asking");
  stream.again();
});
byId("search").addEventListener("submit", (event) => {
  event.preventDefault();
  explain(byId("subject").value);
});
document.addEventListener("click", (event) => {
  const name = event.target.closest?.("[data-subject]")?.dataset.subject;
  if (!name) return;
  byId("search").scrollIntoView({ block: "start" });
  explain(name);
});
setInterval(connection, 1000);
