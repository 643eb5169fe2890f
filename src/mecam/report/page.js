// Puts the page together.

function startSamples() {
  for (const { name, domains, absent } of content.data) {
    const strip = ({ name: domain, count, samples }) => el("div", { class: "strip" },
      el("h4", {}, domain, el("span", { class: "muted" }, ` ${plural(count, "image")}`)),
      el("ul", { class: "samples" }, samples.map(({ label, image }) => el("li", {}, thumbnail(image, `${label}, ${domain}`), el("span", { class: "muted" }, label)))));
    byId("sample-sets").append(el("div", {}, el("h3", {}, name), absent ? el("p", { class: "absent" }, `No images: ${absent}.`) : el("div", { class: "strips" }, domains.map(strip))));
  }
}

function startNotes() {
  const notes = content.notes.length ? content.notes : ["All runs of the folder could be read."];
  byId("note-list").append(...notes.map((note) => el("li", {}, note)));
  const names = unique(content.environments.flatMap((entry) => Object.keys(entry)));
  const counts = content.environments.map((_, place) => content.runs.filter((run) => run.environment === place).length);
  const head = ["runs", ...names].map((name) => el("th", { scope: "col" }, name));
  const body = content.environments.map((entry, place) => el("tr", {}, el("td", {}, String(counts[place])), names.map((name) => el("td", {}, String(entry[name] ?? "–")))));
  byId("environments").append(el("thead", {}, el("tr", {}, head)), el("tbody", {}, body));
  byId("made").textContent = `Written by mecam ${content.version}. Everything is in this file; nothing is fetched.`;
}

function startFacts() {
  const finished = content.runs.filter((run) => run.accuracy !== null).length;
  const targets = content.data.reduce((sum, { targets: all }) => sum + all.length, 0);
  const runs = finished === content.runs.length ? plural(finished, "run") : `${finished} of ${plural(content.runs.length, "run")} finished`;
  byId("facts").textContent = [runs, plural(content.rows.length, "combination"), plural(targets, "unseen domain"), content.data.map(({ name }) => name).join(", ")].join(" · ");
  for (const section of document.querySelectorAll("main > section:not([hidden])")) {
    const words = section.querySelector("h2").dataset.short;
    byId("contents").append(el("li", {}, el("a", { href: `#${section.id}` }, words)));
  }
}

if (content.runs.length) {
  startBoard();
  startCompare();
  startSweeps();
  startCurvature();
  startSurfaces();
  startFigures();
  startSamples();
  startRun();
  announce();
} else {
  for (const section of document.querySelectorAll("main > section:not(#notes)")) section.hidden = true;
  content.notes.unshift("There is no run with an unseen domain in this folder.");
}
startNotes();
startFacts();
