// The leaderboard: one data set with a column per target, or all with a column per data set.

const ALL = "";
const TALL = 30; // rows from which the table scrolls in its own frame, so that the charts stay near
const state = {
  data: content.data.length === 1 ? content.data[0].name : ALL,
  column: null, descending: true,
  text: "", method: ALL, optimizer: ALL, averaging: ALL,
  compared: new Map(), // label: slot
};
const changed = []; // redrawn when the comparison or the data set changes
const announce = () => changed.forEach((draw) => draw());

const targetsOf = (data) => content.data.find((entry) => entry.name === data).targets;
const rowsOf = (data) => content.rows.filter((row) => data === ALL || row.data === data);

// A line of the table: {label, row (any of its rows), cells, rank, runs}
function boardItems() {
  if (state.data !== ALL)
    return rowsOf(state.data).map((row) => ({ label: row.label, row, cells: row.cells, balanced: row.balanced, rank: row.rank, seconds: row.seconds, cost: row.cost, runs: row.runs }));
  const groups = new Map();
  for (const row of content.rows) groups.set(row.label, [...(groups.get(row.label) ?? []), row]);
  return [...groups].map(([label, rows]) => {
    const cells = content.data.map(
      ({ name }) => rows.find((row) => row.data === name)?.cells.at(-1) ?? { mean: null, spread: null, runs: 0, missing: 0 },
    );
    const means = cells.map((cell) => cell.mean);
    const total = {
      mean: means.includes(null) ? null : mean(means), spread: null,
      runs: cells.reduce((sum, cell) => sum + cell.runs, 0), missing: cells.reduce((sum, cell) => sum + cell.missing, 0),
    };
    return { label, row: rows[0], cells: [...cells, total], balanced: null, rank: null, seconds: null, cost: null, runs: rows.flatMap((row) => row.runs) };
  });
}

function boardColumns() {
  const names = state.data === ALL ? content.data.map((entry) => entry.name) : targetsOf(state.data);
  const cells = [...names, AVERAGE].map((name, place) => ({
    name, kind: "cell", place, key: (item) => item.cells[place].mean, descending: true,
  }));
  const ranked = rowsOf(state.data).every((row) => row.rank === null) || state.data === ALL ? [] : [{ name: "rank", kind: "number", key: (item) => item.rank, descending: false }];
  const balanced = state.data !== ALL && rowsOf(state.data).some((row) => row.balanced !== null) ? [{ name: "balanced", kind: "number", key: (item) => item.balanced, descending: true }] : [];
  const timed = state.data !== ALL && rowsOf(state.data).some((row) => row.seconds !== null) ? [{ name: "time", kind: "time", key: (item) => item.seconds, descending: false }] : [];
  return [
    { name: "combination", kind: "name", key: (item) => item.label, descending: false },
    ...cells, ...balanced, ...ranked, ...timed,
    { name: "runs", kind: "number", key: (item) => item.runs.filter((run) => content.runs[run].accuracy !== null).length, descending: true },
  ];
}

let columns = [], boardLines = [];

function buildBoard() {
  columns = boardColumns();
  if (!columns.some((column) => column.name === state.column?.name)) {
    state.column = columns.find((column) => column.name === AVERAGE);
    state.descending = true;
  } else state.column = columns.find((column) => column.name === state.column.name);
  const items = boardItems();
  const best = new Map(columns.filter((column) => column.kind === "cell").map((column) => [
    column.place, Math.max(...items.map((item) => item.cells[column.place].mean).filter((value) => value !== null)).toFixed(1),
  ]));
  boardLines = items.map((item) => boardLine(item, items.length > 1 ? best : new Map()));
  byId("board").replaceChildren(
    el("caption", { class: "hidden" }, "Accuracy on the unseen domain in percent. Buttons in the header sort."),
    el("thead", {}, el("tr", {}, columns.map(headCell))),
    ...boardLines.map((line) => line.body),
  );
  stacked(byId("board"));
  byId("board").parentElement.classList.toggle("tall", items.length > TALL);
  arrange();
}

function headCell(column) {
  const press = () => {
    state.descending = state.column === column ? !state.descending : column.descending;
    state.column = column;
    arrange();
  };
  const button = el("button", { type: "button", onclick: press }, el("span", {}, column.name), el("span", { class: "arrow", "aria-hidden": "true" }));
  column.head = el("th", { scope: "col", class: column.kind }, button);
  return column.head;
}

function boardLine(item, best) {
  const label = item.label;
  const body = el("tbody", {});
  const box = el("input", {
    type: "checkbox", "aria-label": `Compare ${label} in the charts`,
    onchange: () => { compare(label, box.checked); announce(); },
  });
  const icon = el("span", { class: "slot" });
  const open = el("button", { type: "button", class: "open", "aria-expanded": "false", onclick: () => toggle() }, ...nameAndSettings(item));
  function toggle() {
    const opened = body.children.length === 1;
    open.setAttribute("aria-expanded", String(opened));
    if (opened) body.append(el("tr", { class: "behind" }, el("td", { colspan: columns.length }, runTable(item.runs))));
    else body.lastChild.remove();
  }
  const cells = columns.map((column) => {
    if (column.kind === "name") return el("th", { scope: "row" }, el("div", { class: "who" }, el("label", { class: "tick-box" }, box, icon), open));
    if (column.kind === "time")
      return el("td", { class: "number" }, el("span", { class: "mean" }, item.seconds === null ? "–" : clock(item.seconds)),
        item.cost ? el("span", { class: "runs" }, `${Number(item.cost.times.toPrecision(2))} × ${item.cost.of}`) : null);
    if (column.kind === "number") return el("td", { class: "number" }, ["rank", "balanced"].includes(column.name) ? brief(column.key(item)) : String(column.key(item)));
    const cell = item.cells[column.place];
    const top = cell.mean !== null && cell.mean.toFixed(1) === best.get(column.place);
    return el("td", { class: `cell${top ? " best" : ""}` },
      el("span", { class: "mean" }, cellWords(cell)), top ? el("span", { class: "hidden" }, " best") : null,
      el("span", { class: cell.missing && cell.runs ? "runs missing" : "runs" }, runWords(cell)));
  });
  body.append(el("tr", {}, cells));
  return { item, body, box, icon };
}

function nameAndSettings({ label, row }) {
  const tail = ` (${row.settings})`;
  const under = [row.settings && label.endsWith(tail) ? row.settings : null, row.probe ? "the probe" : null].filter(Boolean);
  const name = row.settings && label.endsWith(tail) ? label.slice(0, -tail.length) : label;
  return under.length ? [name, el("span", { class: "settings" }, under.join(", "))] : [name];
}

function runTable(runs) {
  const lines = runs.map((place) => {
    const run = content.runs[place];
    return el("tr", {}, el("td", {}, run.target), el("td", {}, String(run.seed)),
      el("td", {}, run.accuracy === null ? "not finished" : percent(run.accuracy)), el("td", {}, percent(run.validation)),
      el("td", {}, el("button", { type: "button", class: "link", onclick: () => showRun(place, true) }, "Recipe and mistakes", el("span", { class: "hidden" }, ` of ${run.id}`))));
  });
  const head = ["unseen domain", "seed", "accuracy", "validation", ""].map((name) => el("th", { scope: "col" }, name));
  return stacked(el("table", { class: "plain" }, el("thead", {}, el("tr", {}, head)), el("tbody", {}, lines)));
}

// Sort and filter the rows.
function arrange() {
  const { column, descending } = state;
  const words = state.text.toLowerCase().split(/\s+/).filter(Boolean);
  const fits = ({ row, label }) =>
    ["method", "optimizer", "averaging"].every((part) => state[part] === ALL || row[part] === state[part]) &&
    words.every((word) => `${label} ${row.method} ${row.optimizer} ${row.averaging} ${row.settings} ${row.data}`.toLowerCase().includes(word));
  const order = (one, other) => {
    const [a, b] = [column.key(one.item), column.key(other.item)];
    if (a === null || b === null) return (a === null) - (b === null); // unknown values come last in both orders
    const sign = typeof a === "string" ? a.localeCompare(b, "en", { numeric: true }) : a - b;
    return descending ? -sign : sign;
  };
  boardLines.sort(order);
  for (const line of boardLines) line.body.hidden = !fits(line.item);
  byId("board").append(...boardLines.map((line) => line.body));
  for (const { head, name } of columns) {
    const sorted = name === column.name;
    if (sorted) head.setAttribute("aria-sort", descending ? "descending" : "ascending");
    else head.removeAttribute("aria-sort");
    head.querySelector(".arrow").textContent = sorted ? (descending ? "↓" : "↑") : "";
  }
  const visible = boardLines.filter((line) => !line.body.hidden).length;
  byId("shown").textContent = visible === boardLines.length ? plural(visible, "combination") : `${visible} of ${plural(boardLines.length, "combination")}`;
}

function compare(label, wanted) {
  if (!wanted) state.compared.delete(label);
  else {
    const taken = new Set(state.compared.values());
    const slot = [...Array(SLOTS).keys()].find((place) => !taken.has(place));
    if (slot !== undefined) state.compared.set(label, slot);
  }
}

function markCompared() {
  const full = state.compared.size >= SLOTS;
  for (const { item, box, icon } of boardLines) {
    const slot = state.compared.get(item.label);
    box.checked = slot !== undefined;
    box.disabled = full && !box.checked;
    box.title = box.disabled ? `At most ${SLOTS} at a time` : "Compare in the charts";
    icon.replaceChildren(...(slot === undefined ? [] : [markIcon(slot)]));
  }
}

const scoredWords = ({ scored, unscored }) => `${Math.round((100 * scored) / (scored + unscored))} % of the images`;

function buildFilters() {
  const named = (part) => [[ALL, "all"], ...unique(content.rows.map((row) => row[part])).sort().map((name) => [name, name])];
  const search = el("input", { type: "search", autocomplete: "off", oninput: () => { state.text = search.value; arrange(); } });
  const sets = content.data.map(({ name }) => [name, name]);
  const form = byId("filters");
  form.addEventListener("submit", (event) => event.preventDefault());
  form.append(
    field("filter by text", search, "field grow"),
    select("data", sets.length > 1 ? [[ALL, "all data sets"], ...sets] : sets, state.data, (value) => { state.data = value; buildBoard(); announce(); }),
    ...["method", "optimizer", "averaging"].map((part) => select(part, named(part), ALL, (value) => { state[part] = value; arrange(); })),
  );
}

function startBoard() {
  const scored = content.runs.find((run) => run.unscored);
  const words = [
    `Accuracy in percent on the unseen domain: mean ± ${content.spread}. The best per column is bold.`,
    scored ? `${scoredWords(scored)} of an unseen domain are scored; the protocol holds the others out.` : null,
    content.rows.some((row) => row.probe) ? "The probe trains a head on the frozen backbone: the baseline to beat." : null,
    content.rows.some((row) => row.seconds !== null) ? "Time is the median of a run; features of a frozen backbone are computed once and cached." : null,
    "Click a name to list its runs; tick a row to add it to the charts below.",
  ];
  byId("leaderboard-about").textContent = words.filter(Boolean).join(" ");
  buildFilters();
  buildBoard();
  changed.push(markCompared);
  compareBest();
}

// Start with the best rows of each data set; incomplete rows only if there are no others.
function compareBest() {
  const each = Math.max(1, Math.min(4, Math.floor(SLOTS / content.data.length)));
  for (const { name } of content.data) {
    const known = rowsOf(name).filter((row) => row.cells.some((cell) => cell.mean !== null));
    const whole = known.filter((row) => row.cells.at(-1).mean !== null).sort((a, b) => b.cells.at(-1).mean - a.cells.at(-1).mean);
    for (const { label } of (whole.length ? whole : known).slice(0, each)) if (!state.compared.has(label)) compare(label, true);
  }
}
