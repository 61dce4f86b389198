// What page_layout.py takes down of the live page.
() => {
  const masked = (text) => text.replace(/\d+/g, "0").replace(/\s+/g, " ").trim();
  const name = (one) => one.id || one.getAttribute("aria-labelledby") || one.getAttribute("aria-label");
  const seen = (one) => one.getClientRects().length > 0;
  const parts = [...document.querySelectorAll("header, main > section, .balance > *, .scroll, #course")];
  const tops = [...new Set(parts.filter(seen).map((one) => Math.round(one.getBoundingClientRect().top)))]
    .sort((a, b) => a - b).filter((top, at, all) => at === 0 || top - all[at - 1] > 2);
  const boxes = {};
  for (const one of parts.filter(seen)) {
    const { left, top, width } = one.getBoundingClientRect();
    const row = tops.findLastIndex((each) => each <= Math.round(top) + 0.5);
    boxes[`${parts.indexOf(one)} ${name(one) || one.localName}`] = { row, left: Math.round(left), width: Math.round(width) };
  }
  const coloured = ["body", "section", "#number", "#leader", "th", "td", ".tag", ".tag.bad", ".tag.fair", "button", "button.link"];
  const colours = {};
  for (const selector of coloured) {
    const style = getComputedStyle(document.querySelector(selector));
    colours[selector] = [style.color, style.backgroundColor, style.borderTopColor].join(" ");
  }
  for (const variable of ["--bar", "--bound", "--good"]) {
    colours[variable] = getComputedStyle(document.documentElement).getPropertyValue(variable).trim();
  }
  const words = [...document.querySelectorAll("h1, h2, #verdict, #why, th, main button:not(.link), .tag")];
  return { boxes, colours, words: words.filter(seen).map((one) => masked(one.innerText)) };
}
