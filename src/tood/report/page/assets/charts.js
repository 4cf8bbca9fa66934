"use strict";
// The charts of one run: values by step, heat maps of task by step, scores with a threshold.

const run = () => data.runs[state.run];
const entry = (triangle, step, task) => triangle[(step * (step + 1)) / 2 + task];

// The value of a task at a step: for one OOD set, the mean of a group, or near and far weighted equally.
function value(detector, metric, which, step, task) {
  const { metrics, sets, accuracy } = run();
  if (detector === "accuracy") return entry(accuracy, step, task);
  const triangles = metrics[detector][metric];
  const ofGroup = (group) => mean(Object.keys(sets).filter((name) => sets[name] === group)
    .map((name) => entry(triangles[name], step, task)));
  if (which === "*") return mean([...new Set(Object.values(sets))].map(ofGroup));
  return which.startsWith("group:") ? ofGroup(which.slice(6)) : entry(triangles[which.slice(4)], step, task);
}

function series(detector, metric, which, task) {
  const steps = d3.range(task === "*" ? 0 : +task, run().steps);
  return steps.map((step) => ({ name: detector, step, value: 100 * (task === "*"
    ? mean(d3.range(step + 1).map((each) => value(detector, metric, which, step, each)))
    : value(detector, metric, which, step, +task)) }));
}

const METRICS = {
  auroc: "AUROC", fpr_at_ood_recall: "FPR at 95 % OOD caught", fpr_at_id_recall: "FPR at 95 % ID accepted",
  aupr_in: "AUPR, ID positive", aupr_out: "AUPR, OOD positive",
};

// Labels at the ends of lines, moved apart if they would overlap.
function ends(lines, height, [low, high]) {
  const last = lines.map((rows) => ({ ...rows.at(-1) })).sort((a, b) => a.value - b.value);
  const gap = (15 / height) * (high - low || 1);
  last.forEach((one, place) => { one.y = place ? Math.max(one.value, last[place - 1].y + gap) : one.value; });
  const over = last.length ? Math.max(0, last.at(-1).y - high) : 0;
  for (let place = last.length - 1; place >= 0 && over; place--) {
    const ceiling = place === last.length - 1 ? high : last[place + 1].y - gap;
    last[place].y = Math.min(last[place].y, ceiling);
  }
  return last;
}

// The width that end labels need, at most `most`, and a function that shortens a label to it.
const pen = document.createElement("canvas").getContext("2d");
function labelRoom(texts, most) {
  pen.font = "600 12px system-ui, sans-serif";
  const wide = (text) => pen.measureText(text).width + 20;
  const room = Math.min(most, d3.max(texts, wide));
  const cut = (text) => (wide(`${text}…`) > room ? cut(text.slice(0, -1)) : `${text}…`);
  return [room, (text) => (wide(text) > room ? cut(text) : text)];
}

function lineChart(lines, { width, height, name, names, rule }) {
  const few = run().steps <= 20;
  const values = lines.flat().map((row) => row.value);
  const [low, top] = d3.nice(Math.min(...values), Math.max(...values) + 0.01, 6);
  const high = Math.min(100, top);
  const [room, short] = labelRoom(names.map(label), 0.36 * width);
  return Plot.plot({
    width, height, marginLeft: 44, marginRight: room, marginTop: 28, marginBottom: 44, style: { fontSize: "12px" },
    ariaLabel: `${name} by step`,
    x: { label: "step", labelAnchor: "center", labelArrow: "none", labelOffset: 36, domain: [0, Math.max(1, run().steps - 1)], ticks: few ? d3.range(run().steps) : 10, tickFormat: "d" },
    y: { label: name, grid: true, domain: [low, high], ticks: height < 200 ? 3 : 6 },
    marks: [
      rule !== undefined && low < rule ? Plot.ruleY([rule], { strokeDasharray: "2 4", strokeOpacity: 0.6 }) : null,
      ...lines.map((rows) => Plot.lineY(rows, { x: "step", y: "value", stroke: look(rows[0].name).stroke,
        strokeDasharray: look(rows[0].name).dash, strokeWidth: 2.2, marker: few ? "circle" : null, clip: false })),
      Plot.text(ends(lines, height - 72, [low, high]), { x: "step", y: "y", text: (row) => short(label(row.name)), dx: 8,
        textAnchor: "start", fill: (row) => look(row.name).stroke, fontWeight: 600, clip: false }),
      Plot.tip(lines.flat(), Plot.pointer({ x: "step", y: "value", maxRadius: 400,
        title: (row) => `${label(row.name)}\nstep ${row.step}: ${row.value.toFixed(2)} %` })),
    ],
  });
}

function trajectories() {
  const [metric, which, task] = [at("metric").value, at("ood-set").value, at("task").value];
  const shown = [...run().detectors, "accuracy"].filter((name) => !state.hidden.has(name));
  const lines = shown.map((name) => series(name, metric, which, task));
  const scored = lines.filter((rows) => rows[0].name !== "accuracy");
  const known = lines.filter((rows) => rows[0].name === "accuracy");
  at("trajectory-chart").hidden = !scored.length;
  at("accuracy-chart").hidden = !known.length;
  const rule = metric === "auroc" ? 50 : undefined;
  // With the same names, both charts leave the same room for labels, so their steps are aligned.
  if (scored.length) draw("trajectory-chart", (width) => lineChart(scored,
    { width, height: Math.min(360, 210 + width / 6), name: `${METRICS[metric]} (%)`, names: shown, rule }));
  if (known.length) draw("accuracy-chart", (width) => lineChart(known, { width, height: 150, name: "accuracy (%)", names: shown }));
  at("trajectory-table").replaceChildren(
    make("thead", {}, make("tr", {}, make("th", { scope: "col" }, "Detector"),
      ...d3.range(run().steps).map((step) => make("th", { scope: "col" }, `step ${step}`)))),
    make("tbody", {}, ...lines.map((rows) => make("tr", { "data-detector": rows[0].name },
      make("th", { scope: "row" }, label(rows[0].name)),
      ...d3.range(run().steps).map((step) => make("td", {},
        rows.find((row) => row.step === step)?.value.toFixed(2) ?? ""))))));
  maps();
}

function chips() {
  const legend = at("detectors").querySelector("legend");
  at("detectors").replaceChildren(legend, ...[...run().detectors, "accuracy"].map((name) => {
    const box = make("input", { type: "checkbox", checked: !state.hidden.has(name), value: name });
    box.addEventListener("change", () => {
      state.hidden[box.checked ? "delete" : "add"](name);
      trajectories();
    });
    const { stroke, dash } = look(name);
    const sample = d3.create("svg").attr("viewBox", "0 0 26 10").attr("aria-hidden", true);
    sample.append("line").attr("x2", 26).attr("y1", 5).attr("y2", 5).attr("stroke", stroke)
      .attr("stroke-width", 3).attr("stroke-dasharray", dash);
    return make("label", { className: "chip" }, box, sample.node(), label(name));
  }));
}

// ---- heat maps

function maps() {
  const [metric, which] = [at("metric").value, at("ood-set").value];
  const steps = run().steps;
  const sides = ["map-left", "map-right"].map((side) => at(side).value);
  const cells = sides.map((name) => d3.range(steps).flatMap((step) => d3.range(step + 1)
    .map((task) => ({ step, task, value: 100 * value(name, metric, which, step, task) }))));
  const [low] = d3.extent(cells.flat(), (one) => one.value);
  const domain = [Math.min(metric === "auroc" ? 50 : 0, Math.floor(low / 10) * 10), 100];
  const every = steps > 12 ? Math.ceil(steps / 60) * 10 : 1;
  ["map-left", "map-right"].forEach((side, place) => draw(side + "-chart", (width) => Plot.plot({
    width, height: Math.min(width, 460) + 40, marginLeft: 44, marginTop: 8, marginBottom: 44, padding: steps > 30 ? 0 : 0.06,
    style: { fontSize: "12px" }, ariaLabel: `${METRICS[metric]} of every task at every step, ${label(sides[place])}`,
    x: { label: "task", labelOffset: 36, domain: d3.range(steps), tickFormat: (task) => (task % every ? "" : task), tickSize: 0 },
    y: { label: "step", labelOffset: 36, domain: d3.range(steps), tickFormat: (step) => (step % every ? "" : step), tickSize: 0 },
    color: { scheme: "cividis", domain, label: METRICS[metric] + " (%)", legend: true, width: Math.min(width, 240) },
    marks: [
      Plot.cell(cells[place], { x: "task", y: "step", fill: "value" }),
      steps > 12 ? null : Plot.text(cells[place], { x: "task", y: "step", text: (one) => one.value.toFixed(0),
        fill: (one) => (one.value - domain[0] > 0.55 * (domain[1] - domain[0]) ? "#000" : "#fff"),
        fontSize: width / steps < 40 ? 9 : 12 }),
      Plot.tip(cells[place], Plot.pointer({ x: "task", y: "step",
        title: (one) => `task ${one.task} at step ${one.step}\n${one.value.toFixed(2)} %` })),
    ],
  })));
}

// ---- scores and a threshold

const scored = () => run().scores[at("score-detector").value];
function edges() {
  const [low, high] = scored().ranges[+at("step").value];
  return d3.range(scored().bins + 1).map((j) => low + ((high - low) * j) / scored().bins);
}
// The share of samples at or above a threshold: exact at an edge, interpolated within a bin.
function shares(counts, threshold) {
  const own = edges();
  const total = d3.sum(counts);
  const edge = d3.bisectRight(own, threshold) - 1; // the last edge at or below
  if (edge < 0) return 1;
  if (edge >= own.length - 1) return threshold > own.at(-1) ? 0 : counts.at(-1) / total;
  const part = (threshold - own[edge]) / (own[edge + 1] - own[edge]);
  return (d3.sum(counts.slice(edge + 2)) + (1 - part) * counts[edge + 1]) / total;
}
const recallEdge = (counts, recall) => [...edges()].reverse().find((edge) => shares(counts, edge) >= recall) ?? edges()[0];

function pooled(place, group) {
  const sets = Object.keys(scored().ood).filter((name) => run().ood[name] === group);
  return sets.length ? d3.transpose(sets.map((name) => scored().ood[name][place])).map((counts) => d3.sum(counts)) : null;
}

function scores() {
  const place = +at("step").value;
  const { steps, id, ood } = scored();
  const own = edges();
  let task = at("score-task").value;
  if (!id[task][place]) task = "all"; // not learned yet at this step
  const groups = { id: id[task][place], near: pooled(place, "near"), far: pooled(place, "far") };
  const shown = Object.entries(groups).filter(([, counts]) => counts);
  const width = d3.sum(groups.id) < 500 ? 4 : 2; // bins per bar: more with few samples
  const bars = shown.map(([group, counts]) => d3.range(0, own.length - 1, width).map((k) => ({
    group, x: (own[k] + own[Math.min(k + width, own.length - 1)]) / 2,
    share: (100 * d3.sum(counts.slice(k + 1, k + 1 + width))) / d3.sum(counts) })));
  const threshold = state.threshold;
  draw("score-chart", (room) => {
    const plot = Plot.plot({
      width: room, height: Math.min(320, 190 + room / 6), marginLeft: 44, marginTop: 28, marginBottom: 44, style: { fontSize: "12px" },
      ariaLabel: `Scores at step ${steps[place]} and the threshold`,
      x: { label: "score (higher: more ID) →", labelOffset: 38, ticks: room < 500 ? 6 : 10, domain: d3.extent([own[0], own.at(-1), threshold]) },
      y: { label: "share of samples per bin (%)", grid: true, domain: [0, 1.12 * d3.max(bars.flat(), (bar) => bar.share)] },
      color: { domain: shown.map(([group]) => group), range: shown.map(([group]) => data.colours[group]),
        tickFormat: (group) => ({ id: task === "all" ? "ID, all tasks" : `ID, task ${task}`, near: "near-OOD", far: "far-OOD" })[group],
        legend: true },
      marks: [
        ...bars.map((rows) => Plot.areaY(rows, { x: "x", y: "share", fill: "group", fillOpacity: 0.5, curve: "step" })),
        ...bars.map((rows) => Plot.lineY(rows, { x: "x", y: "share", stroke: "group", strokeWidth: 1.5, curve: "step" })),
        Plot.ruleY([0]),
        Plot.ruleX([threshold], { stroke: "currentColor", strokeWidth: 3 }),
        Plot.text([threshold], { x: (d) => d, frameAnchor: "top", text: () => "accepted →", textAnchor: "start", dx: 6 }),
      ],
    });
    drag(plot, own);
    return plot;
  });
  at("step-value").textContent = String(steps[place]);
  at("threshold-value").textContent = threshold.toPrecision(4);
  const accepted = shares(groups.id, state.threshold);
  at("threshold").value = d3.leastIndex(own, (edge) => Math.abs(edge - threshold));
  at("threshold").setAttribute("aria-valuetext", `${threshold.toPrecision(4)}: ${percent(accepted)} percent of ID accepted`);
  const tasks = Object.keys(id).filter((name) => name !== "all" && id[name][place]);
  readout([
    ["ID, all tasks seen", "accepted", shares(id.all[place], state.threshold), data.colours.id],
    ...tasks.map((name) => [`ID, task ${name}`, "accepted", shares(id[name][place], state.threshold), data.colours.id]),
    ...Object.keys(ood).map((name) => [`${name} (${run().ood[name]})`, "caught",
      1 - shares(ood[name][place], state.threshold), data.colours[run().ood[name]]]),
  ]);
}

function readout(rows) {
  at("readout").replaceChildren(
    make("thead", {}, make("tr", {}, ...["Samples", "%", ""].map((name) => make("th", { scope: "col" }, name)))),
    make("tbody", {}, ...rows.map(([name, what, share, colour]) => {
      const bar = make("span");
      bar.style.width = `${100 * share}%`;
      bar.style.background = colour;
      return make("tr", {}, make("th", { scope: "row" }, name, make("span", { className: "soft" }, ` ${what}`)),
        make("td", {}, percent(share)), make("td", {}, make("span", { className: "meter" }, bar)));
    })));
}

function drag(plot, edges) {
  const svg = plot.matches("svg") ? plot : [...plot.querySelectorAll("svg")].at(-1);
  svg.addEventListener("pointerdown", (down) => {
    down.preventDefault();
    // Every move redraws the chart, so its position and scale are read once, and the window has the listeners.
    const [box, scale, span] = [svg.getBoundingClientRect(), plot.scale("x"), svg.viewBox.baseVal.width];
    const move = (event) => {
      const score = scale.invert(((event.clientX - box.left) / box.width) * span);
      state.threshold = d3.least(edges, (edge) => Math.abs(edge - score));
      scores();
    };
    const stop = () => {
      window.removeEventListener("pointermove", move);
      for (const end of ["pointerup", "pointercancel"]) window.removeEventListener(end, stop);
    };
    window.addEventListener("pointermove", move);
    for (const end of ["pointerup", "pointercancel"]) window.addEventListener(end, stop);
    move(down);
  });
}

function chooseRecall() {
  const task = at("score-task").value;
  const counts = (scored().id[task] ?? scored().id.all)[+at("step").value] ?? scored().id.all[+at("step").value];
  state.threshold = recallEdge(counts, 0.95);
  scores();
}

function scorePanel() {
  const has = run().scores !== null;
  at("score-panel").hidden = !has;
  at("no-scores").hidden = has;
  if (!has) return;
  options(at("score-detector"), Object.keys(run().scores).map((name) => [name, label(name)]), "energy");
  const tasks = Object.keys(scored().id).filter((name) => name !== "all");
  options(at("score-task"), [["all", "All tasks seen"], ...tasks.map((task) => [task, `Task ${task}`])], "0");
  at("step").max = scored().steps.length - 1;
  at("step").value = 0;
  at("threshold").max = scored().bins;
  chooseRecall();
}
