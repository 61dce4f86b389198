"use strict";
(() => {
  const DARK = matchMedia("(prefers-color-scheme: dark)");
  const PRINT = matchMedia("print");
  const PAPER_PX = 680;
  /* plotly.js can send a chart to its makers' service; a report stays where it is. */
  const CONFIG = { responsive: true, displaylogo: false, showSendToCloud: false, plotlyServerURL: "" };

  /* Colours of text and grid come from the style, so that a chart fits light and dark. */
  function template() {
    const style = getComputedStyle(document.documentElement);
    const colour = (name) => style.getPropertyValue(name).trim();
    const axis = {
      gridcolor: colour("--line"),
      linecolor: colour("--line"),
      zerolinecolor: colour("--line"),
      automargin: true,
    };
    const hoverlabel = {
      bgcolor: colour("--raised"),
      bordercolor: colour("--line"),
      font: { color: colour("--text"), size: 13 },
      align: "left",
    };
    return {
      layout: {
        paper_bgcolor: "rgba(0,0,0,0)",
        plot_bgcolor: "rgba(0,0,0,0)",
        font: { color: colour("--text"), family: style.fontFamily, size: 13 },
        margin: { l: 60, r: 20, t: 20, b: 45 },
        xaxis: axis,
        yaxis: axis,
        hoverlabel,
        modebar: {
          bgcolor: "rgba(0,0,0,0)",
          color: colour("--soft"),
          activecolor: colour("--accent"),
        },
      },
    };
  }

  async function unpacked(text) {
    const bytes = Uint8Array.from(atob(text), (letter) => letter.charCodeAt(0));
    const inflated = new Blob([bytes]).stream().pipeThrough(new DecompressionStream("deflate"));
    return new Response(inflated).json();
  }

  async function draw(place) {
    if (place.dataset.state) return;
    place.dataset.state = "drawing";
    try {
      const { data, layout } = await unpacked(place.parentElement.querySelector("script").text);
      await Plotly.newPlot(place, data, { ...layout, template: template() }, CONFIG);
      place.dataset.state = "drawn";
    } catch (error) {
      place.dataset.state = "failed";
      place.textContent = `This chart cannot be drawn by this browser: ${error.message}`;
    }
  }

  function forget(place) {
    if (place.dataset.state !== "drawn") return;
    Plotly.purge(place);
    delete place.dataset.state;
    sight.unobserve(place);
    sight.observe(place);
  }

  const sight = new IntersectionObserver(
    (entries) => entries.filter((entry) => entry.isIntersecting).forEach((entry) => draw(entry.target)),
    { rootMargin: "300px" },
  );
  const places = [...document.querySelectorAll(".plot")];
  places.forEach((place) => sight.observe(place));

  /* A folded section gives its charts' memory back. */
  document.querySelectorAll("details").forEach((details) =>
    details.addEventListener("toggle", () => {
      if (!details.open) details.querySelectorAll(".plot").forEach(forget);
    }),
  );

  DARK.addEventListener("change", () => {
    places
      .filter((place) => place.dataset.state === "drawn")
      .forEach((place) => Plotly.relayout(place, { template: template() }));
  });

  /* A print has all charts that are not folded away, however far one has read. */
  async function drawTheRest() {
    for (const place of places) {
      if (place.dataset.state || place.closest("details:not([open])")) continue;
      await new Promise((done) => setTimeout(done, 100));
      await draw(place);
    }
  }
  addEventListener("load", drawTheRest);

  /* Paper is light, and as wide as it is. */
  PRINT.addEventListener("change", () => {
    const size = PRINT.matches ? { width: PAPER_PX, autosize: false } : { width: null, autosize: true };
    places
      .filter((place) => place.dataset.state === "drawn")
      .forEach((place) => Plotly.relayout(place, { ...size, template: template() }));
  });

  /* Rows are sorted by a column's values; what has none comes last either way. */
  function sort(header) {
    const body = header.closest("table").tBodies[0];
    const place = header.cellIndex;
    const order = header.getAttribute("aria-sort") === "ascending" ? "descending" : "ascending";
    const sign = order === "ascending" ? 1 : -1;
    const value = (row) => {
      const cell = row.cells[place];
      return "sort" in cell.dataset ? Number(cell.dataset.sort) : cell.textContent;
    };
    const compared = (one, other) => {
      const [a, b] = [value(one), value(other)];
      if (typeof a === "number" && typeof b === "number") return a === b ? 0 : sign * (a - b);
      if (typeof a === "number") return -1;
      if (typeof b === "number") return 1;
      return sign * a.localeCompare(b, "en", { numeric: true });
    };
    header.parentElement.querySelectorAll("th").forEach((other) => other.setAttribute("aria-sort", "none"));
    header.setAttribute("aria-sort", order);
    body.append(...[...body.rows].sort(compared));
  }
  document
    .querySelectorAll("thead th button")
    .forEach((button) => button.addEventListener("click", () => sort(button.closest("th"))));
})();
