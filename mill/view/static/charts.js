// Charts as SVG, from data: { kind, title, … }. Colours are CSS classes, so that both themes have their own. A point is
// { x, y, low, high, tooltip, name }: low to high is the interval of y, the name is written beside it where there is room.
import { html, visible } from "./lib.js";

const WIDTH = 460, HEIGHT = 240, LEFT = 54, RIGHT = 18, TOP = 18, BOTTOM = 40;
const ROW = 26, GAP = 10, LARGEST_CELL = 16, COUNTS = 56;
const CHAR = 7.4, LINE = 14, ASCENT = 10, DOT = 4; // pixels of a name at the font size on phones, and of a dot

const colourOf = (number) => `c${(number || 0) % 6}`;

// Shortened before the middle: names of models differ at the end.
const short = (text, most = 24) => {
  const letters = [...visible(text)], head = Math.floor(most / 3);
  return letters.length <= most ? letters.join("") : `${letters.slice(0, head).join("")}…${letters.slice(letters.length - (most - head - 1)).join("")}`;
};
const widest = (names) => 14 + CHAR * Math.max(0, ...names.map((name) => [...name].length));

// Round numbers within a range.
const niceTicks = (first, last, most = 6) => {
  const rough = (last - first) / (most - 1), power = 10 ** Math.floor(Math.log10(rough));
  const step = [1, 2, 2.5, 5, 10].map((factor) => power * factor).find((one) => one >= rough) || 10 * power;
  const start = Math.ceil(first / step - 1e-9) * step;
  return Array.from({ length: Math.floor((last - start) / step + 1e-9) + 1 }, (_, at) => Number((start + step * at).toPrecision(12)));
};

// Maps values to pixels from `begin` to `end`. With `log` values are powers of ten; `names` label the integers from 0.
const scale = (axis, begin, end) => {
  const { names = [], log, percent } = axis, [first, far] = [axis.first, axis.last].map((one) => Math.min(1e200, Math.max(-1e200, one)));
  const last = far > first ? far : first + Math.max(1, Math.abs(first));
  const powers = Array.from({ length: Math.max(0, Math.floor(last + 1e-9) - Math.ceil(first - 1e-9) + 1) }, (_, at) => Math.ceil(first - 1e-9) + at);
  const ticks = names.length ? names.map((_, at) => at) : log ? powers.filter((_, at) => at % Math.max(1, Math.floor(powers.length / 6)) === 0) : niceTicks(first, last);
  const text = (tick) => (names.length ? short(names[tick], 12) : log ? `1e${tick}` : percent ? `${Number((100 * tick).toPrecision(6))} %` : String(Number(tick.toPrecision(6))));
  return { label: axis.label, ticks, text, log, at: (value) => begin + ((Math.min(last, Math.max(first, value)) - first) / (last - first)) * (end - begin) };
};
const rule = (axis, tick) => (tick || axis.log ? "grid" : "grid zero");

const Label = ({ kind, x, y, anchor = "middle", children }) => html`<text class=${kind} x=${x.toFixed(1)} y=${y.toFixed(1)} text-anchor=${anchor}>${children}</text>`;
const Whisker = ({ colour, from, to }) => html`<line class=${`whisker ${colour}`} x1=${from[0].toFixed(1)} y1=${from[1].toFixed(1)} x2=${to[0].toFixed(1)} y2=${to[1].toFixed(1)} />`;
const Dot = ({ colour, x, y, tooltip }) => html`<circle class=${`dot ${colour}`} cx=${x.toFixed(1)} cy=${y.toFixed(1)} r=${DOT}>${tooltip && html`<title>${visible(tooltip)}</title>`}</circle>`;

const Grid = ({ x, y }) => html`
  ${y.ticks.map((tick) => html`<line class=${rule(y, tick)} x1=${LEFT} x2=${WIDTH - RIGHT} y1=${y.at(tick).toFixed(1)} y2=${y.at(tick).toFixed(1)} /><${Label} kind="tick" x=${LEFT - 6} y=${y.at(tick) + 4} anchor="end">${y.text(tick)}</${Label}>`)}
  ${x.ticks.map((tick) => html`<${Label} kind="tick" x=${x.at(tick)} y=${HEIGHT - BOTTOM + 16}>${x.text(tick)}</${Label}>`)}
  <${Label} kind="label" x=${(LEFT + WIDTH - RIGHT) / 2} y=${HEIGHT - 4}>${x.label}</${Label}>`;

const Figure = ({ chart, legend = [], width = WIDTH, height, children }) => html`<figure class=${width > WIDTH ? "chart wide" : "chart"}><figcaption>${visible(chart.title)}</figcaption>
  ${legend.length > 0 && html`<div class="legend">${legend.map(([kind, name]) => html`<span class="key"><i class=${`swatch ${kind}`}></i>${visible(name)}</span>`)}</div>`}
  <svg viewBox=${`0 0 ${width} ${Math.ceil(height)}`} role="img" aria-label=${visible(chart.title)}>${children}</svg></figure>`;

const ends = (point) => [point.low ?? point.y, point.high ?? point.y];
const hasInterval = (point) => point.low != null && point.high != null;
const isDrawn = (point) => Number.isFinite(point.x) && Number.isFinite(point.y);

// Names above their points, or below, higher or beside where another name, dot or interval is in the way; else left out.
const placedNames = (points, x, y) => {
  const taken = [], placed = [];
  for (const point of points) {
    const name = short(point.name, 16), half = (CHAR * [...name].length) / 2;
    const px = Math.min(Math.max(x.at(point.x), LEFT + half), WIDTH - half), [low, high] = ends(point);
    const over = Math.min(y.at(point.y), y.at(high)) - 7, under = Math.max(y.at(point.y), y.at(low)) + LINE + 2;
    const beside = [1, -1].map((side) => [x.at(point.x) + side * (half + 8), y.at(point.y) + 4]).filter(([at]) => at >= LEFT + half && at <= WIDTH - half);
    const bars = points.filter((other) => other !== point).map((other) => [x.at(other.x), Math.min(y.at(other.y) - DOT, y.at(ends(other)[1])), Math.max(y.at(other.y) + DOT, y.at(ends(other)[0]))]);
    const places = [[px, over], ...(under < HEIGHT - BOTTOM - 3 ? [[px, under]] : []), [px, over - LINE], [px, over - 2 * LINE], ...beside];
    const free = places.find(([at, py]) => taken.every(([ax, ay, ahalf]) => Math.abs(at - ax) >= half + ahalf || Math.abs(py - ay) >= LINE)
      && bars.every(([bx, top, bottom]) => Math.abs(at - bx) > half + 2 || py + 3 < top || py - ASCENT > bottom));
    if (free) { taken.push([...free, half]); placed.push([...free, name]); }
  }
  return placed;
};

const Series = ({ line, x, y }) => {
  const colour = colourOf(line.colour), points = line.points.filter(isDrawn);
  const path = (pairs) => pairs.map(([px, py]) => `${x.at(px).toFixed(1)},${y.at(py).toFixed(1)}`).join(" ");
  const area = [...points.map((point) => [point.x, ends(point)[1]]), ...points.map((point) => [point.x, ends(point)[0]]).reverse()];
  const banded = line.band && points.length > 1;
  return html`${banded && html`<polygon class=${`band ${colour}`} points=${path(area)} />`}
    ${points.length > 1 && !line.apart && html`<polyline class=${`line ${line.dashed ? "dashed " : ""}${colour}`} points=${path(points.map((point) => [point.x, point.y]))} />`}
    ${!line.dashed && points.map((point) => {
      const own = point.colour == null ? colour : colourOf(point.colour), at = x.at(point.x);
      return html`${hasInterval(point) && !banded && html`<${Whisker} colour=${own} from=${[at, y.at(point.low)]} to=${[at, y.at(point.high)]} />`}<${Dot} colour=${own} x=${at} y=${y.at(point.y)} tooltip=${point.tooltip} />`;
    })}`;
};

// Lines with dots, and error bars or a band; with `apart`, dots alone.
const LineChart = ({ chart }) => {
  const x = scale(chart.x, LEFT, WIDTH - RIGHT), y = scale(chart.y, HEIGHT - BOTTOM, TOP), { series } = chart;
  const named = series.flatMap((line) => line.points).filter((point) => point.name && isDrawn(point));
  return html`<${Figure} chart=${chart} height=${HEIGHT} legend=${series.length > 1 ? series.map((line) => [colourOf(line.colour), line.name]) : []}>
    <${Grid} x=${x} y=${y} />${series.map((line) => html`<${Series} line=${line} x=${x} y=${y} />`)}
    ${placedNames(named, x, y).map(([at, py, name]) => html`<${Label} kind="name" x=${at} y=${py}>${name}</${Label}>`)}</${Figure}>`;
};

// A row for each name: a dot at its value, with its interval.
const DotChart = ({ chart }) => {
  const names = chart.rows.map(([name]) => short(name)), left = widest(names), height = TOP + ROW * names.length + BOTTOM - 10;
  const x = scale(chart.x, left, WIDTH - RIGHT);
  return html`<${Figure} chart=${chart} height=${height}>
    ${x.ticks.map((tick) => html`<line class=${rule(x, tick)} x1=${x.at(tick).toFixed(1)} x2=${x.at(tick).toFixed(1)} y1=${TOP - 6} y2=${height - BOTTOM + 14} /><${Label} kind="tick" x=${x.at(tick)} y=${height - 12}>${x.text(tick)}</${Label}>`)}
    ${chart.rows.map(([, point, colour], at) => {
      const py = TOP + ROW * (at + 0.5);
      return html`<${Label} kind="name" x=${left - 10} y=${py + 4} anchor="end">${names[at]}</${Label}>
        ${hasInterval(point) && html`<${Whisker} colour=${colourOf(colour)} from=${[x.at(point.low), py]} to=${[x.at(point.high), py]} />`}<${Dot} colour=${colourOf(colour)} x=${x.at(point.y)} y=${py} tooltip=${point.tooltip} />`;
    })}</${Figure}>`;
};

// A bar as high as the share that is right, its interval at the mean probability, and below it a bar for the count. The
// diagonal is perfect calibration.
const ReliabilityChart = ({ chart }) => {
  const x = scale({ label: "probability of the chosen answer", first: 0, last: 1 }, LEFT, WIDTH - RIGHT), y = scale({ first: 0, last: 1, percent: true }, HEIGHT - BOTTOM, TOP);
  const most = Math.max(1, ...chart.bins.map((bin) => bin.n)), base = HEIGHT + COUNTS;
  return html`<${Figure} chart=${chart} height=${base + 4}><${Grid} x=${x} y=${y} />
    <line class="diagonal" x1=${x.at(0)} y1=${y.at(0)} x2=${x.at(1)} y2=${y.at(1)} />
    ${chart.bins.map(({ first, last, n, point }) => {
      const bar = { x: (x.at(first) + 0.5).toFixed(1), width: Math.max(1, x.at(last) - x.at(first) - 1).toFixed(1) }, size = Math.max(1, ((COUNTS - LINE) * n) / most);
      return html`<rect class="bin c0" ...${bar} y=${y.at(point.y).toFixed(1)} height=${(y.at(0) - y.at(point.y)).toFixed(1)}><title>${point.tooltip}</title></rect>
        <rect class="amount" ...${bar} y=${(base - size).toFixed(1)} height=${size.toFixed(1)}><title>${n} answers</title></rect>
        <${Whisker} colour="c0" from=${[x.at(point.x), y.at(point.low)]} to=${[x.at(point.x), y.at(point.high)]} /><${Dot} colour="c0" x=${x.at(point.x)} y=${y.at(point.y)} tooltip=${point.tooltip} />`;
    })}
    <${Label} kind="tick" x=${LEFT - 6} y=${base} anchor="end">answers</${Label}><${Label} kind="tick" x=${LEFT - 6} y=${base - COUNTS + LINE + 8} anchor="end">${most.toLocaleString("en")}</${Label}></${Figure}>`;
};

// A strip of squares for each row; a square is [kind, tooltip].
const HeatMap = ({ chart }) => {
  const names = chart.rows.map(([name]) => short(name, 36)), width = 2 * WIDTH, left = widest(names);
  const size = Math.min(LARGEST_CELL, Math.max(7, (width - left) / Math.max(1, ...chart.rows.map(([, cells]) => cells.length))));
  const inLine = Math.max(1, Math.floor((width - left) / size + 1e-9));
  const tops = [6];
  for (const [, cells] of chart.rows) tops.push(tops.at(-1) + Math.ceil(cells.length / inLine) * size + GAP);
  return html`<${Figure} chart=${chart} width=${width} height=${tops.at(-1)} legend=${chart.kinds.map((kind) => [`s-${kind}`, kind])}>
    ${chart.rows.map(([, cells], row) => html`<${Label} kind="name" x=${left - 10} y=${tops[row] + size / 2 + 4} anchor="end">${names[row]}</${Label}>
      ${cells.map(([kind, tooltip], at) => html`<rect class=${`cell s-${kind}`} x=${(left + (at % inLine) * size).toFixed(1)} y=${(tops[row] + Math.floor(at / inLine) * size).toFixed(1)} width=${(size - 1).toFixed(1)} height=${(size - 1).toFixed(1)}><title>${visible(tooltip)}</title></rect>`)}`)}</${Figure}>`;
};

// A table of rates; a cell is darker the further its rate is from `good`.
const Matrix = ({ chart }) => html`<figure class="chart"><figcaption>${visible(chart.title)}</figcaption><div class="scroll"><table class="matrix">
  <thead><tr><td></td>${chart.columns.map((name) => html`<th scope="col">${visible(name)}</th>`)}</tr></thead>
  <tbody>${chart.rows.map(([name, points]) => html`<tr><th scope="row">${visible(name)}</th>${points.map((point) => (point == null || typeof point.y !== "number" ? html`<td>–</td>`
    : html`<td class=${`h${Math.min(5, Math.ceil(5 * Math.abs(point.y - chart.good)))}`} title=${point.tooltip}>${(100 * point.y).toFixed(0)} %</td>`))}</tr>`)}</tbody></table></div></figure>`;

const CHARTS = { line: LineChart, dots: DotChart, reliability: ReliabilityChart, heat: HeatMap, matrix: Matrix };
export const Charts = ({ charts }) => {
  const drawn = (charts || []).filter(Boolean);
  return drawn.length > 0 && html`<div class="charts">${drawn.map((chart) => html`<${CHARTS[chart.kind]} chart=${chart} />`)}</div>`;
};
