// Loss surfaces, flat until seen and then in three dimensions; and the curvature table.

const LIVE = 6; // surfaces drawn in 3-D when seen; browsers keep few 3-D contexts, so the others have a button
const RAMP = ["#2b2a5c", "#2f5d8a", "#23877f", "#6fb35c", "#f2e05c"];
let plotly = null;

// plotly.js is compressed in the page and unpacked when first needed.
function loadPlotly() {
  const packed = byId("plotly").textContent;
  if (!packed || !window.DecompressionStream) return Promise.reject(new Error("no plotly.js in this page"));
  plotly ??= (async () => {
    const bytes = Uint8Array.from(atob(packed), (letter) => letter.charCodeAt(0));
    const stream = new Blob([bytes]).stream().pipeThrough(new DecompressionStream("gzip"));
    const code = await new Response(stream).text();
    document.head.append(el("script", {}, code));
    return window.Plotly;
  })();
  return plotly;
}

const hasWebGL = () => Boolean(document.createElement("canvas").getContext("webgl"));
const runName = (run) => `${content.rows.find((row) => row.runs.includes(run)).label}, ${content.runs[run].target}, seed ${content.runs[run].seed}`;

// One scale for all surfaces over the same images and directions.
function scaleOf(surface) {
  const alike = content.surfaces.filter((other) => other.split === surface.split && other.directions === surface.directions);
  const values = alike.flatMap((other) => other.loss.flat()).filter((value) => value !== null);
  return values.reduce(([low, high], value) => [Math.min(low, value), Math.max(high, value)], [Infinity, -Infinity]);
}

function colour(share) {
  const place = Math.min(0.9999, Math.max(0, share)) * (RAMP.length - 1);
  const [from, to] = [0, 1].map((next) => RAMP[Math.floor(place) + next].match(/\w\w/g).map((pair) => parseInt(pair, 16)));
  return from.map((value, channel) => Math.round(value + (to[channel] - value) * (place % 1)));
}

function flat(surface, [low, high], name) {
  const canvas = el("canvas", { width: surface.x.length, height: surface.y.length, class: "flat", role: "img", "aria-label": `${name}: loss from ${brief(low)} to ${brief(high)}, seen from above` });
  const pixels = new ImageData(surface.x.length, surface.y.length);
  surface.loss.forEach((row, y) => row.forEach((value, x) => {
    if (value === null) return; // a hole stays transparent
    pixels.data.set([...colour((value - low) / (high - low || 1)), 255], 4 * ((surface.y.length - 1 - y) * surface.x.length + x));
  }));
  canvas.getContext("2d").putImageData(pixels, 0, 0);
  return canvas;
}

async function solid(surface, [low, high], place) {
  const Plotly = await loadPlotly();
  const style = getComputedStyle(document.documentElement);
  const [ink, grid] = [style.getPropertyValue("--ink").trim(), style.getPropertyValue("--line").trim()];
  const axis = (title) => ({ title: { text: title }, gridcolor: grid, zerolinecolor: grid, color: ink, showbackground: false });
  const box = el("div", { class: "solid" });
  place.replaceChildren(box);
  const trace = { type: "surface", x: surface.x, y: surface.y, z: surface.loss, cmin: low, cmax: high, showscale: false, colorscale: RAMP.map((shade, at) => [at / (RAMP.length - 1), shade]), hovertemplate: "x %{x:.2f}<br>y %{y:.2f}<br>loss %{z:.3f}<extra></extra>" };
  const layout = { margin: { l: 0, r: 0, t: 0, b: 0 }, paper_bgcolor: "rgba(0,0,0,0)", font: { family: "system-ui, sans-serif", size: 11, color: ink }, scene: { xaxis: axis("x"), yaxis: axis("y"), zaxis: { ...axis("loss"), range: [low, high] }, aspectmode: "manual", aspectratio: { x: 1, y: 1, z: 0.75 }, camera: { eye: { x: 1.5, y: 1.5, z: 0.85 }, center: { x: 0, y: 0, z: -0.12 } } } };
  await Plotly.newPlot(box, [trace], layout, { displayModeBar: false, responsive: true });
  place.dataset.drawn = "solid";
}

function surfaceCard(surface, number) {
  const name = runName(surface.run), scale = scaleOf(surface);
  const place = el("div", { class: "surface" });
  const status = el("p", { class: "small", role: "status" });
  const draw3d = () => solid(surface, scale, place).catch(() => { status.textContent = "This browser cannot draw it in 3-D."; });
  const possible = byId("plotly").textContent && hasWebGL();
  const button = el("button", { type: "button", onclick: () => { button.remove(); draw3d(); } }, "Draw in 3-D", el("span", { class: "hidden" }, ` ${name}`));
  whenSeen(place, () => {
    place.append(flat(surface, scale, name));
    place.dataset.drawn = "flat";
    if (possible && number < LIVE) draw3d();
  });
  const holes = surface.holes ? ` ${plural(surface.holes, "point")} not finite, left open.` : "";
  const ways = surface.directions ? `, ${surface.directions} directions` : "";
  return panel(name, place, possible && number >= LIVE ? button : null, status,
    el("p", { class: "small" }, `Loss on ${surface.split}${ways}: dark ${brief(scale[0])}, light ${brief(scale[1])}.${holes}`));
}

function startSurfaces() {
  if (!content.surfaces.length) return;
  byId("landscape").hidden = false;
  byId("surfaces").append(...content.surfaces.map(surfaceCard));
}

function startCurvature() {
  if (!content.curvature.length) return;
  byId("curvature").hidden = false;
  const rhos = unique(content.curvature.flatMap((entry) => entry.rho)).sort((a, b) => a - b);
  const head = ["run", "split", ...rhos.map((rho) => `rho ${rho}`), "‖∇f‖", "f", "λ max"].map((name) => el("th", { scope: "col" }, name));
  const body = content.curvature.map((entry) => {
    const at = rhos.map((rho) => {
      const place = entry.rho.indexOf(rho);
      return place < 0 ? el("td", { class: "cell" }, "–")
        : el("td", { class: "cell" }, el("span", { class: "mean" }, brief(entry.curvature[place])), el("span", { class: "runs" }, brief(entry.numerator[place])));
    });
    const rest = [entry.gradient_norm, entry.loss, entry.largest_eigenvalue].map((value) => el("td", { class: "number" }, brief(value)));
    return el("tr", {}, el("th", { scope: "row" }, runName(entry.run)), el("td", {}, entry.split), at, rest);
  });
  byId("curvature-table").append(el("caption", { class: "hidden" }, "Curvature by run and rho"), el("thead", {}, el("tr", {}, head)), el("tbody", {}, body));
  stacked(byId("curvature-table"));
}
