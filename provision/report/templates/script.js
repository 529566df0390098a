// Filter and sort. The page says everything without this script; it only hides and reorders.
(() => {
  "use strict";
  const all = (selector, root = document) => Array.from(root.querySelectorAll(selector));
  document.documentElement.classList.add("js");

  const query = document.getElementById("q");
  const boxes = all("input[name=verdict]");
  const shown = document.getElementById("shown");
  const details = new Map(all("details[data-d]").map(element => [element.dataset.d, element]));
  const rows = all("tr[data-v], li[data-v]").map(element => ({
    element, verdict: element.dataset.v, number: element.dataset.n, text: null,
  }));
  const total = rows.filter(row => row.number !== undefined).length;

  function filter() {
    const words = query.value.toLowerCase().split(/\s+/).filter(Boolean);
    const verdicts = new Set(boxes.filter(box => box.checked).map(box => box.value));
    let count = 0;
    for (const row of rows) {
      if (words.length && row.text === null) {
        const card = row.element.closest(".cause");
        const title = card ? card.querySelector("h3").textContent + " " + card.querySelector(".act").textContent : "";
        row.text = `${row.element.textContent} ${title} ${row.element.dataset.q || ""}`.toLowerCase();
      }
      const fits = verdicts.has(row.verdict) && words.every(word => row.text.includes(word));
      row.element.hidden = !fits;
      if (row.number === undefined) continue;
      if (fits) count += 1;
      const section = details.get(row.number);
      if (section) section.hidden = !fits;
    }
    for (const card of all(".cause")) card.hidden = !card.querySelector("[data-v]:not([hidden])");
    const format = number => number.toLocaleString("en");
    shown.textContent = count === total ? `${format(total)} nodes` : `${format(count)} of ${format(total)} nodes`;
    dispatchEvent(new CustomEvent("narrowed", { detail: { words, verdicts } }));
  }

  let waiting = 0;
  query.addEventListener("input", () => { clearTimeout(waiting); waiting = setTimeout(filter, total > 500 ? 150 : 0); });
  for (const box of boxes) box.addEventListener("change", filter);

  const collator = new Intl.Collator("en", { numeric: true });
  function key(row, column) {
    const cell = row.cells[column];
    return cell.dataset.s === undefined ? cell.textContent.trim() : cell.dataset.s;
  }
  function sort(head) {
    const table = head.closest("table"), body = table.tBodies[0], column = head.cellIndex;
    const first = head.dataset.by === "n" ? "descending" : "ascending";
    const order = head.getAttribute("aria-sort") === first
      ? (first === "ascending" ? "descending" : "ascending") : first;
    const sign = order === "ascending" ? 1 : -1;
    const keyed = Array.from(body.rows, row => [key(row, column), row]);
    const numeric = value => value === "" || value === "—" ? -Infinity : Number(value);
    keyed.sort((a, b) => sign * (head.dataset.by === "n"
      ? numeric(a[0]) - numeric(b[0]) || 0 : collator.compare(a[0], b[0])));
    for (const other of all("th[aria-sort]", table)) other.removeAttribute("aria-sort");
    head.setAttribute("aria-sort", order);
    body.append(...keyed.map(pair => pair[1]));
  }
  for (const head of all("table.sortable th[data-by]")) {
    const button = document.createElement("button");
    button.type = "button";
    button.append(...head.childNodes);
    head.append(button);
    button.addEventListener("click", () => sort(head));
  }

  function reveal() {
    const target = /^#n\d+$/.test(location.hash) && document.getElementById(location.hash.slice(1));
    if (!target) return;
    target.closest("details").open = true;
    target.closest("details").scrollIntoView();
  }
  addEventListener("hashchange", reveal);
  document.addEventListener("click", event => {
    const link = event.target.closest && event.target.closest("a[href^='#n']");
    if (link && link.hash === location.hash) reveal();
  });
  reveal();

  // Paper has no clicks: what is wrong is printed open, what is healthy stays a line.
  addEventListener("beforeprint", () => {
    for (const element of all("details.evidence, details.node:not(.v-pass)")) {
      if (!element.open) { element.open = true; element.dataset.printed = ""; }
    }
  });
  addEventListener("afterprint", () => {
    for (const element of all("[data-printed]")) { element.open = false; delete element.dataset.printed; }
  });
  filter();
})();
