// The table of a large fleet: drawn from the page's data, a page of rows at a time, filtered and sorted over all.
(() => {
  "use strict";
  const block = document.getElementById("rows");
  if (!block) return;
  const data = JSON.parse(block.textContent);
  const table = document.getElementById("fleet"), body = table.tBodies[0];
  const PAGE = 100, DETAILED = Number(table.dataset.detailed), columns = data.checks.length;
  const [NAME, VERDICT, CELLS, GPUS, FACTS, SERIALS, WRONG] = [0, 1, 2, 3, 4, 5, 6];
  const rows = data.rows.map((row, number) => ({ row, number, text: null }));
  let fitting = rows, first = 0;

  // Whatever a node says is set as text, never as markup.
  function make(tag, text, kind) {
    const element = document.createElement(tag);
    if (text !== undefined) element.textContent = text;
    if (kind) element.className = kind;
    return element;
  }
  const said = place => `${data.verdicts[place][1]} ${data.verdicts[place][0]}`;
  const kind = place => `v-${data.verdicts[place][0]}`;
  const cell = mark => mark === "." ? make("td", "? did not run", "v-error") : make("td", said(mark), kind(mark));

  function text(one) {
    if (one.text === null) {
      const { row } = one, marks = data.cells[row[CELLS]];
      one.text = [row[NAME], said(row[VERDICT]), data.facts[row[FACTS]], row[SERIALS],
        marks.includes(".") ? "did not run" : "", ...row[WRONG].map(place => data.wrong[place])].join(" ").toLowerCase();
    }
    return one.text;
  }

  function more(one) {
    const { row } = one, line = make("tr"), held = make("td"), marks = data.cells[row[CELLS]];
    line.className = "more";
    held.colSpan = columns + 4;
    const list = make("dl", undefined, "meta");
    const tell = (name, value) => {
      const pair = make("div");
      pair.append(make("dt", name), make("dd", value));
      list.append(pair);
    };
    tell("serial numbers", row[SERIALS] || "unknown");
    tell("facts", data.facts[row[FACTS]] || "unknown");
    const grouped = new Map();
    for (let place = 0; place < columns; place += 1) {
      const word = marks[place] === "." ? "? did not run" : said(marks[place]);
      grouped.set(word, [...(grouped.get(word) || []), data.checks[place]]);
    }
    for (const [word, names] of grouped) tell(word, names.join(", "));
    held.append(list);
    if (row[WRONG].length) {
      const notes = make("ul");
      for (const place of row[WRONG]) notes.append(make("li", data.wrong[place]));
      held.append(notes);
    }
    if (one.number >= DETAILED) held.append(make("p", "Its measurements are in report.json.", "none"));
    line.append(held);
    return line;
  }

  function draw() {
    const lines = fitting.slice(first, first + PAGE).map(one => {
      const { row, number } = one, line = make("tr"), head = make("th");
      head.scope = "row";
      const opener = make("button", row[NAME], "opener");
      opener.type = "button";
      opener.setAttribute("aria-expanded", "false");
      opener.addEventListener("click", () => {
        const open = opener.getAttribute("aria-expanded") === "true";
        opener.setAttribute("aria-expanded", String(!open));
        if (open) line.nextElementSibling.remove(); else line.after(more(one));
      });
      head.append(opener);
      if (number < DETAILED) {
        const link = make("a", "details");
        link.href = `#n${number}`;
        head.append(" ", link);
      }
      line.append(head, make("td", said(row[VERDICT]), kind(row[VERDICT])), ...Array.from(data.cells[row[CELLS]], cell),
        make("td", row[GPUS] || "—"), make("td", data.facts[row[FACTS]] || "—"));
      line.dataset.number = number;
      return line;
    });
    body.replaceChildren(...lines);
    const last = Math.min(first + PAGE, fitting.length), format = number => number.toLocaleString("en");
    const words = fitting.length ? `rows ${format(first + 1)} to ${format(last)} of ${format(fitting.length)}` : "no node fits";
    for (const pager of document.querySelectorAll(".pager")) {
      pager.querySelector("output").textContent = words;
      const [start, back, on, end] = pager.querySelectorAll("button");
      start.disabled = back.disabled = first === 0;
      on.disabled = end.disabled = last >= fitting.length;
    }
  }
  function turn(to) {
    first = Math.max(0, Math.min(to, Math.floor((fitting.length - 1) / PAGE) * PAGE));
    draw();
  }
  for (const pager of document.querySelectorAll(".pager")) {
    const targets = [() => 0, () => first - PAGE, () => first + PAGE, () => fitting.length];
    pager.querySelectorAll("button").forEach((button, place) => button.addEventListener("click", () => turn(targets[place]())));
  }

  const collator = new Intl.Collator("en", { numeric: true });
  const key = [one => one.row[NAME], one => data.verdicts[one.row[VERDICT]][2]];
  for (let place = 0; place < columns; place += 1) {
    key.push(one => {
      const mark = data.cells[one.row[CELLS]][place];
      return mark === "." ? 3.5 : data.verdicts[mark][2];
    });
  }
  key.push(one => one.row[GPUS], one => data.facts[one.row[FACTS]]);
  function sort(head) {
    const numbers = head.dataset.by === "n", usual = numbers ? "descending" : "ascending";
    const order = head.getAttribute("aria-sort") === usual ? (numbers ? "ascending" : "descending") : usual;
    const sign = order === "ascending" ? 1 : -1, of = key[head.cellIndex];
    rows.sort((a, b) => sign * (numbers ? of(a) - of(b) : collator.compare(of(a), of(b))) || a.number - b.number);
    for (const other of table.querySelectorAll("th[aria-sort]")) other.removeAttribute("aria-sort");
    head.setAttribute("aria-sort", order);
    narrow();
  }
  for (const head of table.querySelectorAll("thead th[data-by]")) {
    const button = make("button");
    button.type = "button";
    button.append(...head.childNodes);
    head.append(button);
    button.addEventListener("click", () => sort(head));
  }

  const sections = Array.from(document.querySelectorAll("details[data-d]"));
  const shown = document.getElementById("shown");
  let asked = { words: [], verdicts: new Set(data.verdicts.map(verdict => verdict[0])) };
  function narrow() {
    fitting = rows.filter(one => asked.verdicts.has(data.verdicts[one.row[VERDICT]][0])
      && asked.words.every(word => text(one).includes(word)));
    const numbers = new Set(fitting.map(one => String(one.number)));
    for (const section of sections) section.hidden = !numbers.has(section.dataset.d);
    const format = number => number.toLocaleString("en");
    shown.textContent = fitting.length === rows.length ? `${format(rows.length)} nodes`
      : `${format(fitting.length)} of ${format(rows.length)} nodes`;
    turn(0);
  }
  addEventListener("narrowed", event => { asked = event.detail; narrow(); });
})();
