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
  byId("environments").append(...content.environments.map((entry, place) => {
    const runs = content.runs.filter((run) => run.environment === place).length;
    return el("dl", { class: "facts" }, [["runs", runs], ...Object.entries(entry)].map(([name, value]) => el("div", {}, el("dt", {}, name), el("dd", {}, String(value ?? "–")))));
  }));
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
  startConclusions();
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
