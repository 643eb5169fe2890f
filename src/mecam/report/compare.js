// The charts of the ticked combinations: bars by unseen domain, curves against steps.

const view = { zoomed: false, metric: "accuracy" };
const SCHEDULES = { lr: "learning rate", rho: "rho" }; // offered where they change in some run

// The compared rows of a data set, in the order of their slots.
const comparedRows = (data) =>
  rowsOf(data).filter((row) => state.compared.has(row.label)).sort((a, b) => state.compared.get(a.label) - state.compared.get(b.label));
const shownData = () => content.data.filter(({ name }) => state.data === ALL || name === state.data);

function drawCompared() {
  const chips = [...state.compared].sort((a, b) => a[1] - b[1]).map(([label, slot]) => el("li", {}, markIcon(slot), label));
  byId("compared").replaceChildren(
    chips.length ? el("ul", { class: "legend", "aria-label": "Compared combinations" }, chips)
      : el("p", {}, "Nothing is ticked in the leaderboard."),
  );
}

function drawBars() {
  const panels = [];
  const entries = (rows, place) => rows.map((row) => ({ slot: state.compared.get(row.label), label: row.label, ...row.cells.at(place) }));
  for (const { name, targets } of shownData()) {
    const rows = comparedRows(name);
    if (!rows.length) continue;
    const prefix = state.data === ALL ? `${name}: ` : "";
    const places = state.data === ALL ? [[AVERAGE, -1]] : [...targets.map((target, place) => [target, place]), [AVERAGE, -1]];
    for (const [title, place] of places) panels.push(panel(prefix + title, bars(entries(rows, place), prefix + title, view.zoomed)));
  }
  byId("bars").replaceChildren(...panels);
}

// Mean, lowest and highest over runs at each step they share: [[step, mean, low, high]]
function merged(runs, part) {
  const at = new Map();
  for (const run of runs)
    run.curve?.steps.forEach((step, place) => {
      const value = run.curve[part][place];
      if (value !== null) at.set(step, [...(at.get(step) ?? []), value]);
    });
  const most = Math.max(0, ...[...at.values()].map((values) => values.length));
  return [...at].filter(([, values]) => values.length === most).sort((a, b) => a[0] - b[0])
    .map(([step, values]) => [step, mean(values), Math.min(...values), Math.max(...values)]);
}

function curveSeries(data, target) {
  return comparedRows(data).flatMap((row) => {
    const slot = state.compared.get(row.label);
    const runs = row.runs.map((place) => content.runs[place]).filter((run) => run.target === target);
    return [
      { slot, row, name: `${row.label}, ${target}`, dashed: false, points: merged(runs, `target_${view.metric}`) },
      { slot, row, name: `${row.label}, sources`, dashed: true, points: merged(runs, `source_${view.metric}`) },
    ].filter((line) => line.points.length);
  });
}

// The recipe's schedule, the same for all runs of a row.
function scheduleSeries(data) {
  return comparedRows(data).flatMap((row) => {
    const schedule = content.runs[row.runs[0]].schedule;
    const values = schedule?.[view.metric];
    if (!values) return [];
    const points = schedule.steps.map((step, place) => [step, values[place], values[place], values[place]]);
    return [{ slot: state.compared.get(row.label), row, name: row.label, dashed: false, points }];
  });
}
const changes = (metric) => content.runs.some((run) => new Set(run.schedule?.[metric]).size > 1);

function drawCurves() {
  const scheduled = view.metric in SCHEDULES;
  const places = shownData().flatMap(({ name, targets }) => (scheduled ? [[name, null]] : targets.map((target) => [name, target])));
  const unit = scheduled ? SCHEDULES[view.metric] : view.metric === "accuracy" ? "accuracy, %" : "loss";
  const numbers = [];
  const panels = places.map(([data, target]) => {
    const series = scheduled ? scheduleSeries(data) : curveSeries(data, target);
    if (!series.length) return null;
    const title = scheduled ? data : state.data === ALL ? `${data}: ${target}` : target;
    const last = (line) => `${line.name} ${brief(line.points.at(-1)[1])} at step ${line.points.at(-1)[0]}`;
    for (const line of series.filter((entry) => !entry.dashed)) {
      const sources = series.find((entry) => entry.dashed && entry.row === line.row);
      numbers.push([line.row.label, title, line.points.at(-1)[0], brief(line.points.at(-1)[1]), ...(scheduled ? [] : [sources ? brief(sources.points.at(-1)[1]) : "–"])]);
    }
    const place = panel(title);
    place.classList.add("reserved");
    const label = `${title}: ${unit} against steps. ${series.map(last).join("; ")}`;
    whenSeen(place, () => {
      place.classList.remove("reserved");
      place.append(lines(series, { label, xLabel: "step", yLabel: unit }));
    });
    return place;
  });
  const drawn = panels.filter(Boolean);
  byId("curves").replaceChildren(...(drawn.length ? drawn : [el("p", { class: "absent" }, scheduled ? `The ticked runs have no ${unit}.` : "The ticked runs have no evaluations to draw.")]));
  const names = scheduled ? ["combination", "data", "step", unit] : ["combination", "unseen domain", "step", `unseen, ${unit}`, `sources, ${unit}`];
  const head = names.map((name) => el("th", { scope: "col" }, name));
  const body = numbers.map((line) => el("tr", {}, line.map((value, place) => el(place ? "td" : "th", place ? {} : { scope: "row" }, String(value)))));
  const box = byId("curve-numbers");
  box.replaceChildren(box.firstElementChild, el("div", { class: "scroll" }, stacked(el("table", { class: "plain" }, el("thead", {}, el("tr", {}, head)), el("tbody", {}, body)))));
}

function startCompare() {
  const zoom = el("input", { type: "checkbox", onchange: () => { view.zoomed = zoom.checked; drawBars(); } });
  byId("targets-controls").append(el("label", { class: "check" }, zoom, el("span", {}, "zoom in: points instead of bars, axis not from zero")));
  const metrics = [["accuracy", "accuracy"], ["loss", "loss"], ...Object.entries(SCHEDULES).filter(([metric]) => changes(metric))];
  byId("training-controls").append(
    choice("show", "metric", metrics, view.metric, (value) => { view.metric = value; drawCurves(); }),
  );
  changed.push(drawCompared, drawBars, drawCurves);
}
