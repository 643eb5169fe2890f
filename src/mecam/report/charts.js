// Charts as inline SVG: they scale, print, and take their colours from the style sheet.

const WIDTH = 360;

// A mark for each place in a comparison, so that colour is never the only difference.
const MARKS = [
  "M-4,0a4,4 0 1,0 8,0a4,4 0 1,0 -8,0",
  "M-3.6,-3.6h7.2v7.2h-7.2z",
  "M0,-4.6L4.4,3.4H-4.4z",
  "M0,-5L5,0L0,5L-5,0z",
  "M-4,-2h2v-2h4v2h2v4h-2v2h-4v-2h-2z",
  "M0,4.6L4.4,-3.4H-4.4z",
  "M-5,-1.8h10v3.6h-10z",
  "M-1.8,-5h3.6v10h-3.6z",
];
const mark = (slot, x = 0, y = 0) =>
  svg("path", { d: MARKS[slot], class: `mark c${slot}`, transform: `translate(${x},${y})` });
const markIcon = (slot) => svg("svg", { class: "icon", viewBox: "-6 -6 12 12", "aria-hidden": "true" }, mark(slot));

function ticks(low, high, count) {
  const rough = (high - low) / count || 1;
  const size = 10 ** Math.floor(Math.log10(rough));
  const step = [1, 2, 2.5, 5, 10].map((factor) => factor * size).find((candidate) => candidate >= rough) ?? size * 10;
  const values = [];
  for (let value = Math.ceil(low / step - 1e-9) * step; value <= high + step * 1e-6; value += step)
    values.push(Number(value.toPrecision(10)));
  return values;
}

// A learning rate has no room for its zeros: 5e-5
const tickWords = (tick) => (tick !== 0 && Math.abs(tick) < 1e-3 ? tick.toExponential() : String(tick));

function picture(height, label, ...children) {
  return svg("svg", { viewBox: `0 0 ${WIDTH} ${height}`, role: "img", "aria-label": label, class: "chart" }, children);
}
const text = (x, y, words, anchor = "start", kind = "tick") => svg("text", { x, y, "text-anchor": anchor, class: kind }, words);
const rule = (x1, y1, x2, y2, kind) => svg("line", { x1, y1, x2, y2, class: kind });

function panel(title, ...children) {
  return el("figure", { class: "panel" }, el("figcaption", {}, title), children);
}

// entries: {slot, label, mean, spread}; zoomed: points on an axis of their own instead of bars from zero
function bars(entries, title, zoomed) {
  const known = entries.filter((entry) => entry.mean !== null);
  const edges = known.flatMap((entry) => [entry.mean - (entry.spread ?? 0), entry.mean + (entry.spread ?? 0)]);
  const low = zoomed && edges.length ? Math.max(0, Math.floor(Math.min(...edges) - 1)) : 0;
  const high = zoomed && edges.length ? Math.min(100, Math.ceil(Math.max(...edges) + 1)) : 100;
  const left = 6, right = WIDTH - 82, rowHeight = 38, foot = entries.length * rowHeight + 8;
  const x = (value) => left + ((value - low) / (high - low || 1)) * (right - left);
  const parts = ticks(low, high, 4).flatMap((tick) => [rule(x(tick), 4, x(tick), foot, "grid"), text(x(tick), foot + 14, tick, "middle")]);
  entries.forEach((entry, place) => {
    const top = place * rowHeight + 6, middle = top + 22;
    parts.push(mark(entry.slot, 11, top + 5), text(20, top + 9, shorten(entry.label, 46), "start", "label"));
    if (entry.mean === null) {
      parts.push(text(left, middle + 4, "no finished run"));
      return;
    }
    if (zoomed) parts.push(mark(entry.slot, x(entry.mean), middle));
    else parts.push(svg("rect", { x: left, y: middle - 6, width: x(entry.mean) - left, height: 12, rx: 2, class: `bar c${entry.slot}` }));
    if (entry.spread !== null) {
      const from = x(Math.max(low, entry.mean - entry.spread)), to = x(Math.min(high, entry.mean + entry.spread));
      parts.push(rule(from, middle, to, middle, "whisker"), rule(from, middle - 4, from, middle + 4, "whisker"), rule(to, middle - 4, to, middle + 4, "whisker"));
    }
    parts.push(text(WIDTH - 2, middle + 4, cellWords(entry), "end", "value"));
  });
  const words = entries.map((entry) => `${entry.label} ${cellWords(entry)}`).join("; ");
  return picture(foot + 20, `${title}, accuracy in percent: ${words}`, parts);
}

// series: {slot, name, dashed, points: [[x, y, low, high]]}
function lines(series, { label, xLabel, yLabel, logarithmic = false }) {
  const height = 240, left = 42, right = WIDTH - 10, top = 26, foot = height - 36;
  const all = series.flatMap((line) => line.points);
  if (!all.length) return el("p", { class: "absent" }, "Nothing to draw.");
  const bend = logarithmic ? Math.log10 : (value) => value;
  const xs = all.map((point) => bend(point[0]));
  const ys = all.flatMap((point) => point.slice(1));
  const [x0, x1] = [Math.min(...xs), Math.max(...xs)];
  const pad = (Math.max(...ys) - Math.min(...ys)) * 0.06 || Math.max(...ys) * 0.06 || 1;
  const [y0, y1] = [Math.max(0, Math.min(...ys) - pad), Math.max(...ys) + pad];
  const x = (value) => left + 6 + ((bend(value) - x0) / (x1 - x0 || 1)) * (right - left - 12);
  const y = (value) => foot - ((value - y0) / (y1 - y0)) * (foot - top);
  const parts = ticks(y0, y1, 4).flatMap((tick) => [rule(left, y(tick), right, y(tick), "grid"), text(left - 6, y(tick) + 4, tickWords(tick), "end")]);
  const xTicks = logarithmic ? unique(all.map((point) => point[0])).sort((a, b) => a - b) : ticks(x0, x1, 4);
  let last = -Infinity;
  for (const tick of xTicks) {
    if (x(tick) - last < 34) continue; // no room for another number
    last = x(tick);
    parts.push(rule(last, foot, last, foot + 4, "axis"), text(last, foot + 16, tick.toLocaleString("en", { maximumSignificantDigits: 3 }), "middle"));
  }
  parts.push(rule(left, foot, right, foot, "axis"), text((left + right) / 2, height - 4, xLabel, "middle"), text(2, 10, yLabel));
  for (const { slot, name, dashed, points } of series) {
    if (!dashed && points.some((point) => point[3] > point[2])) {
      const outline = [...points.map((p) => [p[0], p[3]]), ...points.map((p) => [p[0], p[2]]).reverse()];
      parts.push(svg("polygon", { points: outline.map((p) => `${x(p[0]).toFixed(1)},${y(p[1]).toFixed(1)}`).join(" "), class: `band c${slot}` }));
    }
    const way = points.map((p) => `${x(p[0]).toFixed(1)},${y(p[1]).toFixed(1)}`).join(" ");
    parts.push(svg("polyline", { points: way, class: `line c${slot}${dashed ? " dashed" : ""}` }, svg("title", {}, name)));
    const every = Math.ceil(points.length / 8);
    points.forEach((point, place) => {
      if (dashed || place % every !== (points.length - 1) % every) return;
      const shown = mark(slot, x(point[0]).toFixed(1), y(point[1]).toFixed(1));
      shown.append(svg("title", {}, `${name}: ${brief(point[1])} at ${point[0]}`));
      parts.push(shown);
    });
  }
  return picture(height, label, parts);
}

// Accuracy against confidence: a point per bin, as large as its share of the images; [[images, confidence, accuracy]]
function reliability(bins, label) {
  const height = 300, left = 42, right = WIDTH - 10, top = 26, foot = height - 36;
  const x = (value) => left + value * (right - left), y = (value) => foot - value * (foot - top);
  const parts = [0, 0.25, 0.5, 0.75, 1].flatMap((tick) => [
    rule(left, y(tick), right, y(tick), "grid"), text(left - 6, y(tick) + 4, 100 * tick, "end"), text(x(tick), foot + 16, 100 * tick, tick === 1 ? "end" : "middle"),
  ]);
  parts.push(rule(x(0), y(0), x(1), y(1), "axis dashed"), text((left + right) / 2, height - 4, "confidence, %", "middle"), text(2, 10, "accuracy, %"));
  const most = Math.max(...bins.map(([images]) => images));
  for (const [images, confidence, accuracy] of bins) {
    const radius = 2.5 + 7 * Math.sqrt(images / most);
    parts.push(svg("circle", { cx: x(confidence).toFixed(1), cy: y(accuracy).toFixed(1), r: radius.toFixed(1), class: "point c0" },
      svg("title", {}, `${plural(images, "image")}: ${percent(100 * accuracy)} % right at ${percent(100 * confidence)} % confidence`)));
  }
  return picture(height, label, parts);
}

const shorten = (words, most) => (words.length > most ? `${words.slice(0, most - 1)}…` : words);
