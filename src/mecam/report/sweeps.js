// Sensitivity: alpha against beta as a table of shades, rho as lines.

const sweepTarget = { name: AVERAGE };
function sweepCell(sweep, entry) {
  const { cells } = content.rows[entry.row];
  return sweepTarget.name === AVERAGE ? averageOf(cells) : cells[targetsOf(sweep.data).indexOf(sweepTarget.name)];
}

// A grid that was run for some targets only has no average over all; the mean over what is there stands in for it.
function averageOf(cells) {
  const average = cells.at(-1);
  const known = cells.slice(0, -1).filter((cell) => cell.mean !== null);
  if (average.mean !== null || !known.length) return average;
  return { ...average, partial: known.length, mean: mean(known.map((cell) => cell.mean)) };
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
  const partial = known.find(([, cell]) => cell.partial)?.[1].partial;
  const words = [
    `Best at alpha ${bestAlpha}, beta ${bestBeta}${bestBeta <= bestAlpha ? "" : ", where beta exceeds alpha"}.`,
    `${percent(low)} to ${percent(high)} %.`,
    partial ? `Mean over ${plural(partial, "unseen domain")}; the others were not run.` : "",
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

function rhoPanel(data, found) {
  const series = found.slice(0, SLOTS).map((sweep, slot) => ({
    slot, name: sweep.label, dashed: false,
    points: sweep.rows.map((entry) => [entry.values[0], sweepCell(sweep, entry)])
      .filter(([rho, cell]) => rho > 0 && cell && cell.mean !== null).sort((a, b) => a[0] - b[0])
      .map(([rho, { mean: middle, spread }]) => [rho, middle, middle - (spread ?? 0), middle + (spread ?? 0)]),
  })).filter((line) => line.points.length);
  if (!series.length) return null;
  const last = (line) => `${line.name}: ${line.points.map((point) => `${percent(point[1])} at ${point[0]}`).join(", ")}`;
  const legend = el("ul", { class: "legend" }, series.map(({ slot, name }) => el("li", {}, markIcon(slot), name)));
  const left = found.length > SLOTS ? el("p", { class: "small" }, `${found.length - SLOTS} more sweeps are not drawn.`) : null;
  return panel(`${data}: rho`, legend, lines(series, { label: `Accuracy against rho. ${series.map(last).join("; ")}`, xLabel: "rho", yLabel: "accuracy, %", logarithmic: true }), left);
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
