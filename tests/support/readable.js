// What of a page cannot be read on this screen, all its details open: `seen.problems`, each in words.
const problems = new Set(), width = document.documentElement.clientWidth;
const tell = (what, element) => problems.add(`${what}: ${element.tagName} ${element.getAttribute("class")}`
  + ` "${element.textContent.trim().slice(0, 40)}"`);
const shown = element => element.checkVisibility({ checkVisibilityCSS: true }) && element.getClientRects().length;
for (const element of all("details")) element.open = true;
for (const element of all(".node")) element.style.contentVisibility = "visible";

if (width !== innerWidth || document.scrollingElement.scrollWidth > width) problems.add("the page scrolls sideways");
const end = cell => cell.getBoundingClientRect().right - (parseFloat(getComputedStyle(cell).paddingRight) || 0);
for (const table of all("table, svg.heat-map").filter(shown)) {
  const scroller = table.closest(".scroll");
  if (!scroller) { tell("no scroll container", table); continue; }
  const box = scroller.getBoundingClientRect(), strip = getComputedStyle(scroller, "::after");
  const fade = strip.display === "none" ? 0 : parseFloat(strip.width);
  if (box.left < 0 || box.right > width + 1) tell("a scroll container outside the page", scroller);
  scroller.scrollLeft = 1e6;  // to its end: nothing lies beyond it or below the strip in which it fades
  for (const cell of all("td, th, text", table).filter(shown)) {
    const { width: wide, height } = cell.getBoundingClientRect(), size = parseFloat(getComputedStyle(cell).fontSize);
    if (cell.tagName !== "text" && wide < 4 * size && height > 6 * size) tell("letters below each other", cell);
    if (end(cell) > box.right - fade + 1) tell("beyond the end of its container", cell);
  }
  scroller.scrollLeft = 0;
}

const probe = document.body.appendChild(document.createElement("i"));
const colour = value => {  // as [red, green, blue, alpha], from 0 to 1
  probe.style.color = value;
  return getComputedStyle(probe).color.match(/[\d.]+/g).map((part, at) => at < 3 ? part / 255 : +part);
};
const luminance = parts => parts.slice(0, 3).map(part => part <= .03928 ? part / 12.92 : ((part + .055) / 1.055) ** 2.4)
  .reduce((sum, part, at) => sum + part * [.2126, .7152, .0722][at], 0);
const contrast = (one, other) => {
  const [low, high] = [luminance(one), luminance(other)].sort((a, b) => a - b);
  return (high + .05) / (low + .05);
};
const below = element => {
  for (let each = element; each; each = each.parentElement) {
    const parts = colour(getComputedStyle(each).backgroundColor);
    if (parts.length < 4 || parts[3] > .5) return parts;
  }
  return [1, 1, 1];
};
const written = all("body *").filter(element => !["SCRIPT", "STYLE", "OPTION", "title"].includes(element.tagName)
  && Array.from(element.childNodes).some(node => node.nodeType === 3 && node.data.trim()) && shown(element));
for (const element of written) {
  const style = getComputedStyle(element), drawn = element instanceof SVGElement;
  const cell = drawn && element.classList.contains("in") ? style.getPropertyValue("--cell") : "";
  const ink = colour(drawn ? style.fill : style.color), under = cell ? colour(cell) : below(element);
  if (contrast(ink, under) < 4.5) tell(`contrast ${contrast(ink, under).toFixed(1)}`, element);
}

seen.charts = all("svg[role=img]").filter(shown).length;
for (const chart of all("svg[role=img]").filter(shown)) {
  const box = chart.getBoundingClientRect(), texts = [];
  if (!chart.matches(".heat-map") && box.right > width + 1) tell("a chart outside the page", chart);
  for (const one of all("text", chart).filter(shown)) {
    const at = one.getBoundingClientRect();
    if (at.left < box.left - 1 || at.right > box.right + 1 || at.top < box.top - 1 || at.bottom > box.bottom + 1) {
      tell("text outside its chart", one);
    }
    const { a: along, b: up } = one.getScreenCTM();
    const size = parseFloat(getComputedStyle(one).fontSize) * Math.hypot(along, up);
    if (size < 8.5) tell(`letters of ${size.toFixed(1)} pixels`, one);
    if (!one.getAttribute("x").includes(" ")) texts.push([one, at]);
  }
  texts.forEach(([one, a], number) => {
    for (const [other, b] of texts.slice(number + 1)) {
      const across = Math.min(a.right, b.right) - Math.max(a.left, b.left);
      const down = Math.min(a.bottom, b.bottom) - Math.max(a.top, b.top);
      if (across > 0 && down > 3) tell(`over "${one.textContent}"`, other);
    }
  });
}
seen.problems = Array.from(problems);
