// One run: where it is wrong, its recipe, its command.

const thumbnail = (image, alt) => el("img", { src: `data:image/jpeg;base64,${content.images[image]}`, alt, width: 64, height: 64, loading: "lazy" });
const FIRST = 8; // mistakes shown before a confusion is chosen
const rowOfRun = [];
content.rows.forEach((row, place) => row.runs.forEach((run) => { rowOfRun[run] = place; }));

function copyable(title, words) {
  const pieces = words.split(/(?<= )(?=--)/).map((piece) => el("span", {}, piece)); // a command breaks between its options
  const code = el("pre", { tabindex: "0", "aria-label": title, class: words.includes("\n") ? "many" : null }, el("code", {}, pieces));
  const status = el("span", { role: "status" });
  const copy = async () => {
    try {
      await navigator.clipboard.writeText(words);
      status.textContent = "copied";
    } catch {
      getSelection().selectAllChildren(code);
      status.textContent = "selected, ready to copy";
    }
  };
  return el("div", { class: "copyable" }, el("div", { class: "bar-above" }, el("h3", {}, title), status, el("button", { type: "button", onclick: copy }, "Copy", el("span", { class: "hidden" }, ` ${title}`))), code);
}

const NARROW = 8; // classes whose matrix fits a phone; of more it shows the list of confusions

// `choose` shows the mistakes behind a confusion.
function confusion({ classes, counts, whole, images }, run, choose) {
  const cell = (label, predicted, count) => (label === predicted || !count ? String(count)
    : el("button", { type: "button", class: "count", onclick: () => choose([label, predicted, count]), "aria-label": `${classes[label]} taken for ${classes[predicted]}: ${plural(count, "image")}` }, String(count)));
  const rest = run.unscored ? `, the ${scoredWords(run)} that are scored` : "";
  const about = `${plural(images, "image")} of ${run.target}${rest}. Click a number to see the images.`;
  const wrong = counts.filter(([label, predicted]) => label !== predicted);
  const lines = wrong.map(([label, predicted, count]) => el("tr", {}, el("td", {}, classes[label]), el("td", {}, classes[predicted]), el("td", {}, cell(label, predicted, count))));
  const names = ["is", "taken for", "images"].map((name) => el("th", { scope: "col" }, name));
  const list = (kind, caption) => el("div", { class: `scroll ${kind}` }, el("table", { class: "plain pairs" }, el("caption", {}, caption), el("thead", {}, el("tr", {}, names)), el("tbody", {}, lines)));
  if (!whole) return list("", `The most frequent confusions among ${about}`);
  const grid = classes.map(() => classes.map(() => 0));
  for (const [label, predicted, count] of counts) grid[label][predicted] = count;
  const head = el("tr", {}, el("th", { scope: "col", class: "corner" }, "is ╲ taken for"), classes.map((name) => el("th", { scope: "col", class: "upright" }, el("span", {}, name))), el("th", { scope: "col" }, "right"));
  const body = grid.map((row, label) => {
    const total = row.reduce((sum, count) => sum + count, 0);
    const cells = row.map((count, predicted) => el("td", {
      class: `${predicted === label ? "right" : count ? "wrong" : "zero"}`, style: count ? `--shade: ${(8 + 42 * (count / total)).toFixed(0)}%` : null,
    }, cell(label, predicted, count)));
    return el("tr", {}, el("th", { scope: "row" }, classes[label]), cells, el("td", { class: "share" }, total ? `${Math.round((100 * row[label]) / total)} %` : "–"));
  });
  const long = classes.length > NARROW;
  const matrix = el("div", { class: `scroll${long ? " wide-only" : ""}`, role: "region", tabindex: "0", "aria-label": "Confusion matrix" },
    el("table", { class: "heat confusion" }, el("caption", {}, `Rows are what images show, columns what they were taken for; the diagonal, outlined, is right. ${about}`), el("thead", {}, head), el("tbody", {}, body)));
  return long ? [matrix, list("narrow-only", about)] : [matrix];
}

function mistakeList({ classes }, mistakes) {
  if (!mistakes.length) return el("p", { class: "absent" }, "None.");
  return el("ul", { class: "mistakes" }, mistakes.map((mistake) => {
    const [label, predicted] = [classes[mistake.label], classes[mistake.predicted]];
    return el("li", {}, mistake.image === null ? null : thumbnail(mistake.image, `${label}, classified as ${predicted}`),
      el("div", {}, el("strong", {}, predicted), el("span", {}, ` ${mistake.confidence === null ? "" : `${Math.round(100 * mistake.confidence)} % sure`}`), el("br"), el("span", { class: "muted" }, `is ${label}`), el("br"), el("span", { class: "muted file" }, mistake.name)));
  }));
}

// The mistakes of a confusion, or the most confident ones of all; what is left out is counted.
function mistakesPanel(predictions) {
  const title = el("h3", { tabindex: "-1" }), shown = el("div", {});
  const show = (pair, all) => {
    const own = pair ? predictions.mistakes.filter(({ label, predicted }) => label === pair[0] && predicted === pair[1]) : predictions.mistakes;
    const some = all ? own : own.slice(0, FIRST), total = pair ? pair[2] : predictions.wrong;
    const name = (place) => predictions.classes[place];
    title.textContent = pair ? `${name(pair[0])} taken for ${name(pair[1])}: ${plural(total, "image")}` : "Most confident mistakes";
    const bare = own.filter((mistake) => mistake.image === null).length;
    const left = [
      total > own.length ? `${plural(total - own.length, "less confident one")} left out of this page.` : null,
      bare && bare < own.length ? `${plural(bare, "picture")} left out of this page.` : null,
    ].filter(Boolean).join(" ");
    shown.replaceChildren(mistakeList(predictions, some), ...[
      some.length < own.length ? el("button", { type: "button", class: "link", onclick: () => show(pair, true) }, `Show all ${own.length}`) : null,
      pair ? el("button", { type: "button", class: "link", onclick: () => show(null, false) }, "Back to the most confident mistakes") : null,
      left ? el("p", { class: "small" }, left) : null,
    ].filter(Boolean));
  };
  show(null, false);
  const choose = (pair) => {
    show(pair, true);
    title.focus({ preventScroll: true });
    title.scrollIntoView({ block: "nearest" });
  };
  return { panel: el("div", {}, title, shown), choose };
}

function calibration({ calibration: bins, images }) {
  const error = bins.reduce((sum, [count, confidence, accuracy]) => sum + (count / images) * Math.abs(accuracy - confidence), 0);
  const words = `Expected calibration error ${percent(100 * error)} %: below the line the model is too sure, above it not sure enough. A point is as large as its share of the images.`;
  return el("div", { class: "calibration" }, el("h3", {}, "Calibration on the unseen domain"), reliability(bins, `Accuracy against confidence. ${words}`), el("p", { class: "small" }, words));
}

function runView(run) {
  const facts = [
    [`accuracy on ${run.target}`, run.accuracy === null ? "not finished" : `${percent(run.accuracy)} %`],
    ["sources' validation", run.validation === null ? "–" : `${percent(run.validation)} %`],
    ["weights of step", run.accuracy === null ? "–" : run.selected_step === null ? "averaged" : String(run.selected_step)],
    ["scored images", run.accuracy === null ? "–" : run.unscored ? `${run.scored} of ${run.scored + run.unscored}` : String(run.scored)],
    ["seed", String(run.seed)],
    ["data", run.fingerprint ? run.fingerprint.slice(0, 12) : "–"],
    ["run", run.id],
  ];
  const predictions = run.predictions;
  const why = run.accuracy === null ? "The run is not finished." : "No predictions: the run kept none, or it is not among the runs shown in full.";
  const environment = Object.entries(content.environments[run.environment]).map(([name, value]) => `${name} ${value}`).join(", ");
  const missing = (name) => el("div", {}, el("h3", {}, name), el("p", { class: "absent" }, why));
  const mistakes = predictions ? mistakesPanel(predictions) : null;
  return [
    el("dl", { class: "facts" }, facts.map(([name, value]) => el("div", {}, el("dt", {}, name), el("dd", {}, value)))),
    el("div", { class: "halves" },
      predictions ? el("div", {}, el("h3", {}, "Confusion on the unseen domain"), confusion(predictions, run, mistakes.choose), predictions.calibration.length ? calibration(predictions) : null) : missing("Confusion on the unseen domain"),
      predictions ? mistakes.panel : missing("Most confident mistakes")),
    copyable("Command", run.command),
    copyable("Recipe", run.toml),
    el("p", { class: "small" }, environment ? `Made with ${environment}.` : ""),
  ];
}

function showRun(place, moved = false) {
  const row = rowOfRun[place];
  const rows = content.rows.map((entry, at) => [String(at), content.data.length > 1 ? `${entry.data}: ${entry.label}` : entry.label]);
  const runs = content.rows[row].runs.map((at) => {
    const { target, seed, accuracy } = content.runs[at];
    return [String(at), `${target}, seed ${seed}${accuracy === null ? ", not finished" : `, ${percent(accuracy)} %`}`];
  });
  const focused = [...byId("run-controls").querySelectorAll("select")].indexOf(document.activeElement);
  byId("run-controls").replaceChildren(
    select("combination", rows, String(row), (value) => showRun(content.rows[Number(value)].runs[0])),
    select("run", runs, String(place), (value) => showRun(Number(value))),
  );
  byId("run-controls").querySelectorAll("select")[focused]?.focus(); // the select that was used has been replaced
  byId("run-view").replaceChildren(...runView(content.runs[place]));
  if (moved) {
    byId("run").scrollIntoView();
    byId("run-title").focus({ preventScroll: true });
  }
}

function startRun() {
  const best = boardLines[0]?.item.runs ?? [];
  showRun(best.find((place) => content.runs[place].predictions) ?? best[0]);
}
