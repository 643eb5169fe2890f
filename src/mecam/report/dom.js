// Elements from data. Names reach the page as text nodes and attributes only, never as markup.

const content = JSON.parse(document.getElementById("content").textContent);
const AVERAGE = "average";
const SLOTS = 8; // combinations that can be compared: as many colours and marks as readers can distinguish

const byId = (id) => document.getElementById(id);

function fill(node, attributes, children) {
  for (const [name, value] of Object.entries(attributes ?? {})) {
    if (value === null || value === undefined || value === false) continue;
    if (name.startsWith("on")) node.addEventListener(name.slice(2), value);
    else node.setAttribute(name, value === true ? "" : value);
  }
  node.append(...children.flat(Infinity).filter((child) => child !== null && child !== undefined));
  return node;
}
const el = (name, attributes, ...children) => fill(document.createElement(name), attributes, children);
const svg = (name, attributes, ...children) =>
  fill(document.createElementNS("http://www.w3.org/2000/svg", name), attributes, children);

const plural = (count, word) => `${count.toLocaleString("en")} ${word}${count === 1 ? "" : "s"}`;
const percent = (value) => (value === null ? "–" : value.toFixed(1));
const brief = (value) => (value === null ? "–" : String(Number(value.toPrecision(3))));
const unique = (values) => [...new Set(values)];
const mean = (values) => values.reduce((sum, value) => sum + value, 0) / values.length;

function cellWords(cell) {
  return percent(cell.mean) + (cell.spread === null ? "" : ` ± ${cell.spread.toFixed(1)}`);
}

function runWords(cell) {
  if (!cell.runs) return "not run";
  return cell.missing ? `${cell.runs} of ${plural(cell.runs + cell.missing, "run")}` : plural(cell.runs, "run");
}

const clock = (seconds) => {
  const whole = Math.round(seconds), [hours, minutes, rest] = [Math.floor(whole / 3600), Math.floor(whole / 60) % 60, whole % 60];
  const two = (value) => String(value).padStart(2, "0");
  return hours ? `${hours}:${two(minutes)}:${two(rest)}` : `${minutes}:${two(rest)}`;
};

// On a narrow screen each row of such a table is a block, and its cells carry the names of their columns.
function stacked(table) {
  const names = [...table.tHead.rows[0].cells].map((cell) => cell.textContent);
  for (const body of table.tBodies)
    for (const row of body.rows) [...row.cells].forEach((cell, place) => { if (place || cell.localName === "td") cell.dataset.name = names[place] ?? ""; });
  table.classList.add("stacked");
  return table;
}

let fields = 0;
function field(label, box, kind = "field") {
  box.id = `field-${(fields += 1)}`;
  return el("div", { class: kind }, el("label", { for: box.id }, label), box);
}

function select(label, options, chosen, change) {
  const box = el("select", { onchange: () => change(box.value) });
  for (const [value, words] of options) box.append(el("option", { value, selected: value === chosen }, words));
  return field(label, box);
}

function choice(legend, name, options, chosen, change) {
  const radio = ([value, words]) =>
    el("label", {}, el("input", { type: "radio", name, value, checked: value === chosen, onchange: () => change(value) }), el("span", {}, words));
  return el("fieldset", { class: "choice" }, el("legend", {}, legend), options.map(radio));
}

// Draws when the place comes into view, or when the page is printed.
const waiting = new Map();
const watcher = new IntersectionObserver(
  (entries) => entries.filter((entry) => entry.isIntersecting).forEach((entry) => drawNow(entry.target)),
  { rootMargin: "300px" },
);
function drawNow(place) {
  const draw = waiting.get(place);
  watcher.unobserve(place);
  waiting.delete(place);
  draw?.();
}
function whenSeen(place, draw) {
  waiting.set(place, draw);
  watcher.observe(place);
}
window.addEventListener("beforeprint", () => [...waiting.keys()].forEach(drawNow));
