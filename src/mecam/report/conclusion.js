// The top of the page: which model to use, what it is expected to do and to cost, and the command that trains it.

function startConclusions() {
  const several = content.conclusions.length > 1;
  byId("verdicts").append(...content.conclusions.map(({ data, lines: [first, ...others], command }) => el("div", { class: "verdict" },
    several ? el("h3", {}, data) : null,
    el("p", { class: "expected" }, first),
    others.length ? el("ul", {}, others.map((line) => el("li", {}, line))) : null,
    command ? copyable("Train it on all domains", command) : null)));
}
