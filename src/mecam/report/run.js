// One run: where it is wrong, its recipe, its command.

const thumbnail = (image, alt) => el("img", { src: `data:image/png;base64,${content.images[image]}`, alt, width: 64, height: 64, loading: "lazy" });
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

function confusion({ classes, counts, whole, images }) {
  if (!whole) {
    const lines = counts.map(([label, predicted, count]) => el("tr", {}, el("td", {}, classes[label]), el("td", {}, classes[predicted]), el("td", {}, String(count))));
    const head = ["is", "taken for", "images"].map((name) => el("th", { scope: "col" }, name));
    return el("div", { class: "scroll" }, el("table", { class: "plain" }, el("caption", {}, `The most frequent confusions among ${plural(images, "image")}`), el("thead", {}, el("tr", {}, head)), el("tbody", {}, lines)));
  }
  const grid = classes.map(() => classes.map(() => 0));
  for (const [label, predicted, count] of counts) grid[label][predicted] = count;
  const head = el("tr", {}, el("th", { scope: "col", class: "corner" }, "is ╲ taken for"), classes.map((name) => el("th", { scope: "col", class: "upright" }, el("span", {}, name))), el("th", { scope: "col" }, "right"));
  const body = grid.map((row, label) => {
    const total = row.reduce((sum, count) => sum + count, 0);
    const cells = row.map((count, predicted) => el("td", {
      class: `${predicted === label ? "right" : count ? "wrong" : "zero"}`, style: count ? `--shade: ${(8 + 42 * (count / total)).toFixed(0)}%` : null,
    }, String(count)));
    return el("tr", {}, el("th", { scope: "row" }, classes[label]), cells, el("td", { class: "share" }, total ? `${Math.round((100 * row[label]) / total)} %` : "–"));
  });
  return el("div", { class: "scroll", role: "region", tabindex: "0", "aria-label": "Confusion matrix" },
    el("table", { class: "heat confusion" }, el("caption", {}, `${plural(images, "image")} of the unseen domain: rows are what they show, columns what they were taken for; the diagonal, outlined, is right.`), el("thead", {}, head), el("tbody", {}, body)));
}

function mistakeList({ classes, mistakes }) {
  if (!mistakes.length) return el("p", { class: "absent" }, "None.");
  return el("ul", { class: "mistakes" }, mistakes.map((mistake) => {
    const [label, predicted] = [classes[mistake.label], classes[mistake.predicted]];
    return el("li", {}, mistake.image === null ? null : thumbnail(mistake.image, `${label}, classified as ${predicted}`),
      el("div", {}, el("strong", {}, predicted), el("span", {}, ` ${mistake.confidence === null ? "" : `${Math.round(100 * mistake.confidence)} % sure`}`), el("br"), el("span", { class: "muted" }, `is ${label}`), el("br"), el("span", { class: "muted file" }, mistake.name)));
  }));
}

function runView(run) {
  const facts = [
    [`accuracy on ${run.target}`, run.accuracy === null ? "not finished" : `${percent(run.accuracy)} %`],
    ["sources' validation", run.validation === null ? "–" : `${percent(run.validation)} %`],
    ["weights of step", run.accuracy === null ? "–" : run.selected_step === null ? "averaged" : String(run.selected_step)],
    ["seed", String(run.seed)],
    ["data", run.fingerprint ? run.fingerprint.slice(0, 12) : "–"],
    ["run", run.id],
  ];
  const predictions = run.predictions;
  const why = run.accuracy === null ? "The run is not finished." : "No predictions: the run kept none, or it is not among the runs shown in full.";
  const environment = Object.entries(content.environments[run.environment]).map(([name, value]) => `${name} ${value}`).join(", ");
  return [
    el("dl", { class: "facts" }, facts.map(([name, value]) => el("div", {}, el("dt", {}, name), el("dd", {}, value)))),
    el("div", { class: "halves" },
      el("div", {}, el("h3", {}, "Confusion on the unseen domain"), predictions ? confusion(predictions) : el("p", { class: "absent" }, why)),
      el("div", {}, el("h3", {}, "Most confident mistakes"), predictions ? mistakeList(predictions) : el("p", { class: "absent" }, why))),
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
