// The paper's figures: images, and references to the page's own charts.

function figureCard({ title, about, image, section }) {
  if (image) return panel(`${title}. ${about}`, el("img", { src: `data:image/svg+xml;base64,${image}`, alt: `${title}. ${about}` }));
  const words = byId(section).querySelector("h2").dataset.short;
  return panel(`${title}. ${about}`, el("p", {}, "In the section ", el("a", { href: `#${section}` }, words), "."));
}

function startFigures() {
  if (!content.figures.length) return;
  byId("figures").hidden = false;
  byId("figure-list").append(...content.figures.filter((figure) => !figure.absent).map(figureCard));
  const absent = content.figures.filter((figure) => figure.absent)
    .map(({ title, absent: why, command }) => el("li", {}, `${title}: ${why}. `, el("code", {}, command)));
  byId("figures-absent").hidden = !absent.length;
  byId("figures-absent").append(el("ul", {}, absent));
}
