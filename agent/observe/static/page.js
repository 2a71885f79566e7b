// SPDX-License-Identifier: Apache-2.0
// The page of an agent: asks it once a second what there is, and shows that. All text goes in as text, never as HTML.
"use strict";

const STATE_MS = 1000, HOUR_MS = 5000, RATE_MS = 10000;
const SHOWN_CHANGES = 12, SHOWN_IN_LEGEND = 24, SHOWN_AT_ONCE = 8;
const LIST = 2; // the column of CPU lists, which may be long
const MANY = 128, CROWD = 320; // cells
const SVG = "http://www.w3.org/2000/svg";
const byId = (id) => document.getElementById(id);
const seen = { state: null, hour: null, job: null, hourAt: 0, pointing: false, column: null, counts: [], map: "" };

// --- small things

function make(tag, className, text) {
  const element = document.createElement(tag);
  if (className) element.className = className;
  if (text !== undefined) element.textContent = text;
  return element;
}

function draw(tag, attributes, text) {
  const element = document.createElementNS(SVG, tag);
  for (const [name, value] of Object.entries(attributes)) element.setAttribute(name, value);
  if (text !== undefined) element.textContent = text;
  return element;
}

const counted = (number, noun) => `${number} ${noun}${number === 1 ? "" : "s"}`;
const clock = (date) => date.toLocaleTimeString([], { hour: "2-digit", minute: "2-digit", second: "2-digit", hourCycle: "h23" });
const round = (number) => String(Math.round(number * 10) / 10);

// Eight colours that people of every colour vision tell apart, then the same darker, then lighter.
function colours(number) {
  const palette = seen.state.palette;
  const base = palette[number % palette.length];
  const [toward, share] = [[0, 0], [0, .4], [255, .5]][Math.floor(number / palette.length) % 3];
  const rgb = [1, 3, 5].map((at) => Math.round(parseInt(base.slice(at, at + 2), 16) * (1 - share) + toward * share));
  const light = (.299 * rgb[0] + .587 * rgb[1] + .114 * rgb[2]) / 255;
  return { colour: `rgb(${rgb.join(" ")})`, on: light > .5 ? "#16171a" : "#ffffff" };
}

const GREY = { colour: "rgb(150 150 145)", on: "#16171a" };

function paint(element, number) {
  const { colour, on } = number === null ? GREY : colours(number);
  element.style.setProperty("--colour", colour);
  element.style.setProperty("--on", on);
}

function chip(job) {
  const found = make("span", "chip", job.letter);
  paint(found, job.number);
  return found;
}

// --- what there is now

function showState(state) {
  document.title = `${state.node}: drom`;
  byId("node").textContent = state.node;
  const rate = changesPerSecond(state.changes);
  byId("headline").textContent = `${counted(state.jobs.length, "job")}, ${counted(state.tasks, "task")}, `
    + `${state.used} of ${counted(state.managed, state.unit)} in use, ${rate.toFixed(1)} changes a second. `
    + `drom ${state.version}, ${clock(new Date(state.time))}.`;
  byId("notes").replaceChildren(...state.notes.map((note) => make("li", "", note)));
  byId("notes").hidden = !state.notes.length;
  showMap(state);
  showChanges(state);
  showJobs(state);
}

function changesPerSecond(count) {
  const now = performance.now();
  seen.counts = seen.counts.filter(([at, before]) => now - at < RATE_MS && before <= count);
  seen.counts.push([now, count]);
  const [at, before] = seen.counts[0];
  return now > at ? (count - before) / (now - at) * 1000 : 0;
}

function showMap(state) {
  const map = byId("map");
  const shape = JSON.stringify(state.map.map((one) => [one.package, one.nodes.map((node) => [node.numa, node.cells.length])]));
  if (shape !== seen.map) {
    map.replaceChildren(...state.map.map(makePackage));
    seen.map = shape;
  }
  const cells = state.map.flatMap((one) => one.nodes.flatMap((node) => node.cells));
  map.className = cells.length > CROWD ? "crowd" : cells.length > MANY ? "many" : "";
  const signs = new Set();
  map.querySelectorAll(".cell").forEach((element, index) => showCell(element, cells[index], state.jobs, signs));
  const words = { ".": ". idle", "~": "~ left alone", "-": "- not the agent's", moving: "hatched: comes or goes, not yet in force" };
  byId("signs").textContent = Object.keys(words).filter((sign) => signs.has(sign)).map((sign) => words[sign]).join("   ");
}

function makePackage({ package: number, nodes }) {
  const block = make("div", "package");
  block.append(make("h3", "", `socket ${number}`));
  const inside = block.appendChild(make("div", "nodes"));
  for (const node of nodes) {
    const group = inside.appendChild(make("div", "node"));
    for (let left = node.cells.length; left > 0; left -= 1) group.append(make("div", "cell"));
  }
  return block;
}

function showCell(element, [sign, which, cpus], jobs, signs) {
  const job = which === null ? null : jobs[which];
  const moving = job !== null && sign !== job.letter;
  signs.add(job ? (moving ? "moving" : "") : sign);
  element.className = `cell${job ? " job" : ""}${moving ? " moving" : ""}${job && job.name === seen.job ? " chosen" : ""}`;
  element.textContent = sign === "." ? "" : sign;
  element.title = `CPU ${cpus}${job ? `: ${job.name}${moving ? ", not settled" : ""}` : ""}`;
  element.dataset.job = job ? job.name : "";
  if (job) paint(element, job.number);
}

function showChanges(state) {
  const lines = state.pending.slice(0, SHOWN_CHANGES).map((change) => {
    const line = make("li");
    const rank = change.task ? `, task ${change.task}` : "";
    line.append(chip(state.jobs[change.job]), `${state.jobs[change.job].name}${rank}: `,
      make("code", "", `${change.from || "-"} → ${change.to || "-"}`), ` ${change.state}`);
    return line;
  });
  const more = state.pending.length - lines.length;
  if (more > 0) lines.push(make("li", "quiet", `and ${more} more`));
  byId("changes").replaceChildren(...lines);
  byId("pending").hidden = !lines.length;
}

function showJobs(state) {
  const body = byId("jobs");
  const rows = new Map([...body.children].map((row) => [row.dataset.job, row]));
  const wanted = state.jobs.map((job) => showJob(rows.get(job.name) || makeRow(job.name), job));
  const same = wanted.length === body.children.length && wanted.every((row, index) => row === body.children[index]);
  if (!same) body.replaceChildren(...wanted);
  byId("nobody").hidden = wanted.length > 0;
}

function makeRow(name) {
  const row = make("tr");
  row.dataset.job = name;
  const button = make("button", "", name);
  button.type = "button";
  row.append(make("td"), make("td", "number"), make("td", "wide list"), make("td"), make("td", "wide"), make("td", "wide"),
    make("td", "number wide"), make("td", "number wide"), make("td"));
  row.children[LIST].append(make("div"));
  row.firstChild.append(make("span", "chip"), button);
  return row;
}

function showJob(row, job) {
  row.className = job.name === seen.job ? "chosen" : "";
  row.querySelector(".chip").textContent = job.letter;
  paint(row.querySelector(".chip"), job.number);
  const cpus = job.now === job.target ? String(job.now) : `${job.now} → ${job.target}`;
  const texts = [cpus, job.cpus || "-", job.state, job.user, job.class, String(job.owned), String(job.lent), job.why];
  texts.forEach((text, index) => {
    const cell = index + 1 === LIST ? row.children[LIST].firstChild : row.children[index + 1];
    if (cell.textContent !== text) cell.textContent = text;
  });
  row.children[LIST].title = job.cpus;
  return row;
}

// --- the last hour

function showHour() {
  const hour = seen.hour, chart = byId("chart");
  const width = chart.clientWidth, height = chart.clientHeight;
  if (!hour || !width || !seen.state) return;
  const box = { left: 30, right: width - 6, top: 8, bottom: height - 20 };
  const span = Math.max(300, (hour.columns.length - 1) * hour.step + hour.last); // seconds: five minutes at least
  const most = Math.max(hour.cpus, 1);
  const x = (ago) => box.right - ago / span * (box.right - box.left);
  const y = (cpus) => box.bottom - Math.min(cpus, most) / most * (box.bottom - box.top);
  const ago = (index) => index >= hour.columns.length ? 0 : hour.last + (hour.columns.length - 1 - index) * hour.step;
  const svg = draw("svg", { role: "img", "aria-label": "CPUs by job over the last hour" });
  for (const cpus of new Set([0, Math.round(most / 2), most])) {
    svg.append(draw("line", { class: cpus === most ? "all" : "grid", x1: box.left, x2: box.right, y1: y(cpus), y2: y(cpus) }));
    svg.append(draw("text", { x: box.left - 6, y: y(cpus) + 4, "text-anchor": "end" }, cpus));
  }
  const minutes = [1, 2, 5, 10, 15].find((step) => span / 60 / step <= 6) || 15;
  for (let at = 0; at * 60 <= span; at += minutes) {
    const anchor = at === 0 ? "end" : "middle";
    svg.append(draw("text", { x: x(at * 60), y: height - 5, "text-anchor": anchor }, at ? `\u2212${at} min` : "now"));
  }
  const areas = stack(hour).map(([which, runs]) => {
    const path = runs.map((run) => outline(run, x, y, ago)).join("");
    const job = which === null ? null : hour.jobs[which];
    const area = draw("path", { class: "area", d: path });
    area.style.fill = (job === null ? GREY : colours(job.number)).colour;
    area.dataset.job = job === null ? "" : job.name;
    return area;
  });
  svg.append(...areas);
  chart.replaceChildren(svg);
  seen.column = (at) => hour.columns.findIndex((_, index) => at >= x(ago(index)) && at < x(ago(index + 1)));
  seen.middle = (index) => (x(ago(index)) + x(ago(index + 1))) / 2;
  seen.ago = ago;
  seen.box = box;
  showLegend(hour);
}

// For each job, and null for those taken together, its runs of columns: [column, CPUs below it, CPUs with it].
function stack(hour) {
  const runs = new Map();
  hour.columns.forEach((column, index) => {
    let below = 0;
    for (const [which, cpus] of column) {
      const mine = runs.get(which) || runs.set(which, []).get(which);
      const last = mine[mine.length - 1];
      const piece = [index, below, below + cpus];
      if (last && last[last.length - 1][0] === index - 1) last.push(piece);
      else mine.push([piece]);
      below += cpus;
    }
  });
  return [...runs];
}

function outline(run, x, y, ago) {
  const number = (value) => value.toFixed(1);
  const above = run.map(([index, , high]) => `${number(x(ago(index)))} ${number(y(high))}H${number(x(ago(index + 1)))}`);
  const below = run.slice().reverse().map(([index, low]) => `${number(x(ago(index + 1)))} ${number(y(low))}H${number(x(ago(index)))}`);
  return `M${above.join("L")}L${below.join("L")}Z`;
}

function showLegend(hour) {
  const totals = new Map();
  for (const column of hour.columns) for (const [which, cpus] of column) totals.set(which, (totals.get(which) || 0) + cpus);
  const ranked = [...totals].filter(([which]) => which !== null).sort((one, other) => other[1] - one[1]);
  const shown = ranked.slice(0, SHOWN_IN_LEGEND).map(([which]) => which).sort((one, other) => one - other);
  const items = shown.map((which) => {
    const item = make("li");
    item.append(chip(hour.jobs[which]), make("span", "name", hour.jobs[which].name));
    return item;
  });
  const more = ranked.length - shown.length;
  if (more > 0 || totals.has(null)) items.push(make("li", "quiet", more > 0 ? `and ${counted(more, "job")} more` : "grey: others"));
  byId("legend").replaceChildren(...items);
}

function pointAt(event) {
  seen.pointing = true;
  const chart = byId("chart"), svg = chart.querySelector("svg");
  const index = svg && seen.column ? seen.column(event.clientX - chart.getBoundingClientRect().left) : -1;
  chart.querySelectorAll(".cursor, .tip").forEach((element) => element.remove());
  if (index < 0) return;
  const middle = seen.middle(index);
  svg.append(draw("line", { class: "cursor", x1: middle, x2: middle, y1: seen.box.top, y2: seen.box.bottom }));
  const tip = chart.appendChild(make("div", "tip"));
  tip.append(make("div", "quiet", clock(new Date(Date.parse(seen.hour.time) - seen.ago(index) * 1000))));
  const column = seen.hour.columns[index].slice().sort((one, other) => other[1] - one[1]);
  for (const [which, cpus] of column.slice(0, SHOWN_AT_ONCE)) {
    const line = tip.appendChild(make("div"));
    const job = which === null ? { name: "others", number: null, letter: "" } : seen.hour.jobs[which];
    line.append(chip(job), `${round(cpus)}  ${job.name}`);
  }
  if (column.length > SHOWN_AT_ONCE) tip.append(make("div", "quiet", `and ${column.length - SHOWN_AT_ONCE} more`));
  if (!column.length) tip.append(make("div", "", "all idle"));
  tip.style.left = `${Math.max(0, Math.min(middle + 10, chart.clientWidth - tip.offsetWidth))}px`;
}

function pointAway() {
  seen.pointing = false;
  showHour();
}

// --- why a job has what it has

async function explain(name) {
  seen.job = name || null;
  byId("why").hidden = !seen.job;
  document.body.classList.toggle("explained", seen.job !== null);
  if (seen.state) showState(seen.state);
  if (!seen.job) return;
  const answer = await fetch(`explain.json?job=${encodeURIComponent(name)}`);
  const told = await answer.json();
  if (seen.job !== name) return; // somebody has chosen another meanwhile
  byId("whose").textContent = name;
  const sentences = told.sentences ? told.sentences.map((sentence) => sentence.text) : [told.error];
  byId("sentences").replaceChildren(...sentences.map((text) => make("p", "", text)));
}

function choose(event) {
  const found = event.target.closest("[data-job]");
  if (found && found.dataset.job) explain(found.dataset.job).catch(() => {});
}

// --- again and again

async function look() {
  const state = await ask("state.json");
  seen.state = state;
  showState(state);
  if (performance.now() - seen.hourAt > HOUR_MS || !seen.hour) {
    seen.hour = await ask("hour.json");
    seen.hourAt = performance.now();
    if (!seen.pointing) showHour();
  }
  if (seen.job) await explain(seen.job);
}

async function ask(what) {
  const answer = await fetch(what);
  if (!answer.ok) throw new Error(`${answer.status}`);
  return answer.json();
}

async function watch() {
  for (;;) {
    if (!document.hidden) {
      try {
        await look();
        byId("trouble").hidden = true;
      } catch (error) {
        if (!(error instanceof TypeError) && !(error.message > 0)) console.error(error);
        const when = seen.state ? `This is how it was at ${clock(new Date(seen.state.time))}: ` : "";
        byId("trouble").textContent = `${when}the agent does not answer.`;
        byId("trouble").hidden = false;
      }
    }
    await new Promise((done) => setTimeout(done, STATE_MS));
  }
}

byId("map").addEventListener("click", choose);
byId("jobs").addEventListener("click", choose);
byId("chart").addEventListener("click", choose);
byId("chart").addEventListener("pointermove", pointAt);
byId("chart").addEventListener("pointerleave", pointAway);
byId("close").addEventListener("click", () => explain(null));
document.addEventListener("keydown", (event) => { if (event.key === "Escape") explain(null); });
addEventListener("resize", showHour);
watch();
