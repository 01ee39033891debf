"use strict";
// Basics: elements, numbers in words, and requests to this server.
//
// The files of the page are one script, in the order in which service/pages.py names them. What the
// server says of itself (/health) is in `state`, and what the thresholds mean in `measured`.
const $ = (id) => document.getElementById(id);
const state = {};
const measured = { places: [], marks: [], reason: "" };

function make(tag, set = {}, ...inner) {
  const element = Object.assign(document.createElement(tag), set);
  element.append(...inner);
  return element;
}

const text = (tag, className, textContent) => make(tag, { className, textContent });

const number = (x) =>
  Math.abs(x) >= 1000 || (x !== 0 && Math.abs(x) < 0.001)
    ? x.toExponential(2)
    : x.toFixed(Math.abs(x) >= 100 ? 1 : 3);

const percent = (x) =>
  x < 0.001 ? "< 0.1 %" : x > 0.999 ? "> 99.9 %" : (100 * x).toFixed(1) + " %";

const megabytes = (bytes) => `${+(bytes / 2 ** 20).toFixed(bytes < 2 ** 20 ? 2 : 1)} MB`;

const count = (n, what) => `${n.toLocaleString("en")} ${what}${n === 1 ? "" : "s"}`;

// "3.2 in 100": a share with the smallest of 100, 1,000, ... that makes it 1 or more when rounded.
function inMany(share, round = Math.round) {
  let many = 100;
  while (share * many < 0.95 && many < 1e9) many *= 10;
  const shown = share * many;
  // Rounding errors of the product must not round up what is whole.
  const digits = shown < 10 ? round(10 * shown - (round === Math.ceil) * 1e-6) / 10 : round(shown);
  return `${digits} in ${many.toLocaleString("en")}`;
}

const speech = () => state.modality === "speaker";
const inputWord = () => (speech() ? "recording" : state.modality === "face" ? "photo" : "image");
const subjectWord = () => ({ speaker: "voice", face: "face" })[state.modality] || "subject";

// The token comes with the printed address. It does not stay there, where others may read it.
let token = new URLSearchParams(location.hash.slice(1)).get("token") || "";
if (token) history.replaceState(null, "", location.pathname);

async function request(path, how = {}) {
  if (token) how.headers = { Authorization: "Bearer " + token };
  let answer;
  try {
    answer = await fetch(path, how);
  } catch {
    throw new Error("The server does not answer.");
  }
  if (answer.ok) return answer;
  const said = await answer.json().catch(() => null);
  throw new Error((said && said.error) || `The server answered with ${answer.status}.`);
}

async function ask(path, how = {}) {
  const answer = await request(path, how);
  return answer.json().catch(() => {
    throw new Error(`The server answered with ${answer.status}, but not as it should.`);
  });
}

function form(fields) {
  const body = new FormData();
  for (const [name, value] of Object.entries(fields))
    if (value instanceof Blob) body.append(name, value, "upload");
    else if (value !== undefined) body.append(name, value);
  return { method: "POST", body };
}
