// Sensitivity: alpha against beta as a table of shades, rho as lines.

const sweepTarget = { name: AVERAGE };
const cellsOf = (entry) => content.rows[entry.row].cells.slice(0, -1);

// Indices of the targets that all rows of a sweep have; rows without a finished run do not count.
function sharedTargets(sweep) {
  const begun = sweep.rows.map(cellsOf).filter((cells) => cells.some((cell) => cell.mean !== null));
  return targetsOf(sweep.data).map((_, place) => place).filter((place) => begun.every((cells) => cells[place].mean !== null));
}

// Average over the targets that all rows have, so that averages are comparable.
function sweepCell(sweep, entry) {
  const cells = cellsOf(entry), average = content.rows[entry.row].cells.at(-1);
  if (sweepTarget.name !== AVERAGE) return cells[targetsOf(sweep.data).indexOf(sweepTarget.name)];
  const shared = sharedTargets(sweep);
  if (!shared.length || shared.length === cells.length) return average;
  const means = shared.map((place) => cells[place].mean);
  return { ...average, spread: null, mean: means.includes(null) ? null : mean(means) };
}

function partialWords(sweep) {
  const shared = sharedTargets(sweep).map((place) => targetsOf(sweep.data)[place]);
  if (sweepTarget.name !== AVERAGE || !shared.length || shared.length === targetsOf(sweep.data).length) return "";
  return `Mean over ${shared.join(", ")}: the other targets are incomplete.`;
}

function heatMap(sweep) {
  const cells = new Map(sweep.rows.map((entry) => [entry.values.join(), sweepCell(sweep, entry)]));
  const [alphas, betas] = [0, 1].map((axis) => unique(sweep.rows.map((entry) => entry.values[axis])).sort((a, b) => a - b));
  const known = [...cells].filter(([, cell]) => cell && cell.mean !== null);
  if (!known.length) return null;
  const means = known.map(([, cell]) => cell.mean);
  const [low, high] = [Math.min(...means), Math.max(...means)];
  const [where] = known.find(([, cell]) => cell.mean === high);
  const [bestAlpha, bestBeta] = where.split(",").map(Number);
  const square = (alpha, beta) => {
    const cell = cells.get([alpha, beta].join());
    if (!cell || cell.mean === null) return el("td", { class: "none" }, "–");
    const shade = 6 + 44 * ((cell.mean - low) / (high - low || 1));
    const best = cell.mean === high;
    return el("td", { class: best ? "best" : null, style: `--shade: ${shade.toFixed(0)}%` }, percent(cell.mean),
      best ? el("span", { class: "hidden" }, " best") : null, cell.spread === null ? null : el("small", {}, `± ${cell.spread.toFixed(1)}`));
  };
  const head = el("tr", {}, el("th", { scope: "col" }, "alpha ╲ beta"), betas.map((beta) => el("th", { scope: "col" }, String(beta))));
  const body = alphas.map((alpha) => el("tr", {}, el("th", { scope: "row" }, String(alpha)), betas.map((beta) => square(alpha, beta))));
  const words = [
    `Best at alpha ${bestAlpha}, beta ${bestBeta}${bestBeta <= bestAlpha ? "" : ", where beta exceeds alpha"}.`,
    `${percent(low)} to ${percent(high)} %.`,
    partialWords(sweep),
    reference(sweep),
  ];
  return panel(`${sweep.label}: alpha and beta`,
    el("div", { class: "scroll", role: "region", tabindex: "0", "aria-label": `${sweep.label}, alpha against beta` }, el("table", { class: "heat" }, el("thead", {}, head), el("tbody", {}, body))),
    el("p", { class: "small" }, words.filter(Boolean).join(" ")));
}

// SAM, to measure the grid against.
function reference(sweep) {
  const cell = sweep.reference === null ? null : sweepCell(sweep, { row: sweep.reference });
  return cell && cell.mean !== null ? `For comparison, sam: ${cellWords(cell)}.` : "";
}

function rhoPanel(data, sweeps) {
  const series = sweeps.slice(0, SLOTS).map((sweep, slot) => ({
    slot, name: sweep.label, dashed: false,
    points: sweep.rows.map((entry) => [entry.values[0], sweepCell(sweep, entry)])
      .filter(([rho, cell]) => rho > 0 && cell && cell.mean !== null).sort((a, b) => a[0] - b[0])
      .map(([rho, { mean: middle, spread }]) => [rho, middle, middle - (spread ?? 0), middle + (spread ?? 0)]),
  })).filter((line) => line.points.length);
  if (!series.length) return null;
  const last = (line) => `${line.name}: ${line.points.map((point) => `${percent(point[1])} at ${point[0]}`).join(", ")}`;
  const legend = el("ul", { class: "legend" }, series.map(({ slot, name }) => el("li", {}, markIcon(slot), name)));
  const left = sweeps.length > SLOTS ? el("p", { class: "small" }, `${sweeps.length - SLOTS} more sweeps are not drawn.`) : null;
  const partial = unique(sweeps.map(partialWords)).filter(Boolean).map((words) => el("p", { class: "small" }, words));
  return panel(`${data}: rho`, legend, lines(series, { label: `Accuracy against rho. ${series.map(last).join("; ")}`, xLabel: "rho", yLabel: "accuracy, %", logarithmic: true }), partial, left);
}

function drawSweeps() {
  const rho = content.data.map(({ name }) => rhoPanel(name, content.rho.filter((sweep) => sweep.data === name)));
  byId("sweeps").replaceChildren(...[...content.grids.map(heatMap), ...rho].filter(Boolean));
}

function startSweeps() {
  if (!content.grids.length && !content.rho.length) return;
  byId("settings").hidden = false;
  const targets = unique([...content.grids, ...content.rho].flatMap((sweep) => targetsOf(sweep.data)));
  byId("settings-controls").append(
    select("unseen domain", [[AVERAGE, AVERAGE], ...targets.map((name) => [name, name])], AVERAGE, (value) => { sweepTarget.name = value; drawSweeps(); }),
  );
  drawSweeps();
}
