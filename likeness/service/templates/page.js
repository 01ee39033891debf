"use strict";
const $ = (id) => document.getElementById(id),
  held = {},
  state = {},
  tickets = {},
  recorders = {};
// What is shown belongs to the inputs of one moment. Every change of an input begins a new turn, and
// answers of an earlier turn are not shown.
let turn = 0,
  working = 0,
  clock = 0;
const make = (tag, set = {}, ...inner) => {
  const e = Object.assign(document.createElement(tag), set);
  e.append(...inner);
  return e;
};
const number = (x) =>
  Math.abs(x) >= 1000 || (x !== 0 && Math.abs(x) < 0.001)
    ? x.toExponential(2)
    : x.toFixed(Math.abs(x) >= 100 ? 1 : 3);
const percent = (x) =>
  x < 0.001 ? "< 0.1 %" : x > 0.999 ? "> 99.9 %" : (100 * x).toFixed(1) + " %";
const speech = () => state.modality === "speaker";
let token = new URLSearchParams(location.hash.slice(1)).get("token") || "";
if (token) history.replaceState(null, "", location.pathname);

async function ask(path, how = {}) {
  if (token) how.headers = { Authorization: "Bearer " + token };
  let answer;
  try {
    answer = await fetch(path, how);
  } catch {
    throw new Error("The server does not answer.");
  }
  const said = await answer
    .json()
    .catch(() => ({ error: "The server answered with " + answer.status + "." }));
  if (!answer.ok) throw new Error(said.error);
  return said;
}
function show(...inner) {
  $("answer").replaceChildren(...inner);
  $("answer").hidden = false;
  $("answer").scrollIntoView({ block: "nearest", behavior: "smooth" });
}
const fail = (error) => show(make("p", { className: "error", textContent: error.message }));
function clear() {
  turn++;
  working = 0;
  clearInterval(clock);
  $("answer").hidden = true;
  $("answer").replaceChildren();
  $("answer").removeAttribute("aria-busy");
  ready();
}
// lasting: the task changes the gallery, so that its end is shown also where an input was changed
// meanwhile.
async function busy(what, task, lasting = false) {
  clear();
  const mine = turn,
    begun = Date.now();
  working = mine;
  ready();
  const time = make("span", { className: "soft time", ariaHidden: "true" });
  show(make("p", { className: "busy" }, make("i"), what, time));
  $("answer").setAttribute("aria-busy", "true");
  const tick = () => {
    time.textContent = `${Math.floor((Date.now() - begun) / 1000)} s`;
  };
  tick();
  clock = setInterval(tick, 1000);
  let answer;
  try {
    const got = await task();
    answer = () => got && got();
  } catch (error) {
    answer = () => fail(error);
  }
  if (turn !== mine && (!lasting || working || !$("answer").hidden)) return;
  if (turn === mine) clear();
  answer();
}
function ready() {
  $("compare").disabled = !!working || !(held.first && held.second);
  $("search").disabled = !!working || !held.probe;
  $("enrol").disabled = !!working || !(held.enrolment && $("subject").value.trim());
  for (const one of $("entries").querySelectorAll("button")) one.disabled = !!working;
}
const megabytes = (bytes) => `${+(bytes / 2 ** 20).toFixed(bytes < 2 ** 20 ? 2 : 1)} MB`;
function fits(...blobs) {
  const size = blobs.reduce((sum, one) => sum + one.size, 0),
    most = state.max_bytes - 4096; // the rest of the request
  if (size <= most) return;
  const more = size - most,
    // Just over the limit, both sizes round to the same number of megabytes.
    extra = more < 2 ** 18 ? `${Math.ceil(more / 1024)} kB` : megabytes(more);
  throw new Error(
    `${blobs.length > 1 ? "Together these are" : "This is"} ${megabytes(size)}, ${extra} too much; ` +
      `the server reads at most ${megabytes(state.max_bytes)} at once. ` +
      "Choose a shorter recording or a smaller photo.",
  );
}
// What was chosen is what is shown and sent, also where the file is changed, moved or deleted
// afterwards.
async function copy(blob) {
  try {
    return new Blob([await blob.arrayBuffer()], { type: blob.type });
  } catch {
    throw new Error("That file cannot be read: it was changed, moved or deleted. Choose it again.");
  }
}

// Sound that the server reads is sent as it is, so that scores are those of the command line. All
// else becomes 16-bit mono WAV.
async function isRead(blob) {
  const head = String.fromCharCode(...new Uint8Array(await blob.slice(0, 4).arrayBuffer()));
  return ["RIFF", "fLaC", "OggS"].includes(head) || head.startsWith("ID3");
}
async function toWav(blob) {
  const context = new AudioContext();
  let sound;
  try {
    sound = await context.decodeAudioData(await blob.arrayBuffer());
  } catch {
    throw new Error("This browser cannot decode that sound.");
  } finally {
    context.close();
  }
  const rate = 16000,
    off = new OfflineAudioContext(1, Math.max(1, Math.round(sound.duration * rate)), rate),
    source = off.createBufferSource();
  source.buffer = sound;
  source.connect(off.destination);
  source.start();
  const wave = (await off.startRendering()).getChannelData(0),
    view = new DataView(new ArrayBuffer(44 + 2 * wave.length));
  const text = (at, letters) =>
    [...letters].forEach((c, i) => view.setUint8(at + i, c.charCodeAt(0)));
  text(0, "RIFF");
  view.setUint32(4, 36 + 2 * wave.length, true);
  text(8, "WAVEfmt ");
  view.setUint32(16, 16, true);
  view.setUint16(20, 1, true);
  view.setUint16(22, 1, true);
  view.setUint32(24, rate, true);
  view.setUint32(28, 2 * rate, true);
  view.setUint16(32, 2, true);
  view.setUint16(34, 16, true);
  text(36, "data");
  view.setUint32(40, 2 * wave.length, true);
  wave.forEach((x, i) => view.setInt16(44 + 2 * i, Math.max(-1, Math.min(1, x)) * 32767, true));
  return { blob: new Blob([view], { type: "audio/wav" }), wave };
}
function draw(canvas, wave) {
  const scale = devicePixelRatio || 1,
    w = (canvas.width = canvas.clientWidth * scale),
    h = (canvas.height = canvas.clientHeight * scale),
    pen = canvas.getContext("2d");
  pen.fillStyle = getComputedStyle(document.body).getPropertyValue("--blue");
  const step = 3 * scale,
    all = Math.max(
      1e-4,
      wave.reduce((a, x) => Math.max(a, Math.abs(x)), 0),
    );
  for (let x = 0; x < w; x += step) {
    let top = 0;
    const from = Math.floor((x / w) * wave.length),
      to = Math.max(from + 1, Math.floor(((x + step) / w) * wave.length));
    for (let i = from; i < to && i < wave.length; i++) top = Math.max(top, Math.abs(wave[i]));
    const size = Math.max(scale, (top / all) * h);
    pen.fillRect(x, (h - size) / 2, 2 * scale, size);
  }
}
async function put(place, blob, name) {
  const box = empty(place),
    ticket = tickets[place];
  try {
    fits(blob);
    blob = await copy(blob);
    let wave = null;
    if (speech()) {
      const made = await toWav(blob);
      wave = made.wave;
      if (!(await isRead(blob))) blob = made.blob;
    } else if (!blob.type.startsWith("image/")) throw new Error("That is no image.");
    if (tickets[place] !== ticket) return;
    fits(blob);
    const again = make("button", { className: "button small", textContent: "Other" });
    again.onclick = () => empty(place);
    const line = make(
      "div",
      { className: "row" },
      make("span", { className: "soft", textContent: name }),
      again,
    );
    box.classList.add("full");
    if (speech()) {
      const picture = make("canvas", { role: "img", ariaLabel: "waveform" });
      box.replaceChildren(
        picture,
        make("audio", { controls: true, src: URL.createObjectURL(blob) }),
        line,
      );
      draw(picture, wave);
    } else box.replaceChildren(make("img", { alt: "", src: URL.createObjectURL(blob) }), line);
    held[place] = blob;
  } catch (error) {
    if (tickets[place] === ticket) {
      clear();
      fail(error);
    }
  }
  ready();
}
function empty(place) {
  const box = document.querySelector(`[data-drop=${place}]`),
    what = speech() ? "recording" : "photo";
  delete held[place];
  box.classList.remove("full");
  tickets[place] = (tickets[place] || 0) + 1;
  if (recorders[place]) recorders[place]();
  clear();
  const file = make("input", {
    type: "file",
    accept: speech() ? "audio/*" : "image/*",
    ariaLabel: `${place} ${what}`,
  });
  file.id = `file-${place}`;
  file.onchange = () => file.files[0] && put(place, file.files[0], file.files[0].name);
  const pick = make("button", { className: "button", textContent: "Choose a file" });
  pick.onclick = () => file.click();
  const acts = make("div", { className: "acts" }, pick, file);
  if (speech() && navigator.mediaDevices && window.MediaRecorder) {
    const mic = make("button", { className: "button", textContent: "Record" });
    mic.onclick = () => record(place, mic);
    acts.prepend(mic);
  }
  const title = {
    first: `First ${what}`,
    second: `Second ${what}`,
    probe: `A ${what}`,
    enrolment: `A ${what}`,
  }[place];
  const pair = place === "first" || place === "second",
    most = `up to ${megabytes(state.max_bytes)}${pair ? " for both" : ""}`;
  box.replaceChildren(
    make("span", { className: "name", textContent: title }),
    acts,
    make("small", { textContent: `or drop a file here, ${most}` }),
  );
  box.ondragover = (event) => {
    event.preventDefault();
    box.classList.add("over");
  };
  box.ondragleave = () => box.classList.remove("over");
  box.ondrop = (event) => {
    event.preventDefault();
    box.classList.remove("over");
    const one = event.dataTransfer.files[0];
    if (one) put(place, one, one.name);
  };
  return box;
}
async function record(place, button) {
  let stream;
  clear();
  const ticket = tickets[place];
  try {
    stream = await navigator.mediaDevices.getUserMedia({
      audio: {
        channelCount: 1,
        echoCancellation: false,
        noiseSuppression: false,
        autoGainControl: false,
      },
    });
  } catch {
    return fail(new Error("No microphone: allow it, or choose a file."));
  }
  if (tickets[place] !== ticket) return stream.getTracks().forEach((one) => one.stop());
  const recorder = new MediaRecorder(stream),
    parts = [],
    begun = Date.now();
  recorders[place] = () => {
    delete recorders[place];
    if (recorder.state === "recording") recorder.stop();
  };
  recorder.ondataavailable = (event) => parts.push(event.data);
  recorder.onstop = () => {
    clearInterval(counter);
    delete recorders[place];
    stream.getTracks().forEach((one) => one.stop());
    if (tickets[place] === ticket)
      put(place, new Blob(parts), `recorded, ${((Date.now() - begun) / 1000).toFixed(1)} s`);
  };
  button.classList.add("rec");
  button.onclick = () => recorder.stop();
  const tick = () => {
    const s = (Date.now() - begun) / 1000;
    button.textContent = `Stop  ${s.toFixed(1)} s`;
    if (s > 30 && recorder.state === "recording") recorder.stop();
  };
  const counter = setInterval(tick, 100);
  recorder.start();
  tick();
}

const subjectWord = () => ({ speaker: "voice", face: "face" })[state.modality] || "subject";
const fact = (name, value, note = "") =>
  make(
    "div",
    {},
    make("dt", { textContent: name }),
    make("dd", {}, value, " ", make("small", { textContent: note })),
  );
function scale(score, threshold, similarity) {
  if (similarity !== "cosine") return "";
  const at = (x) => Math.max(0, Math.min(100, 50 * (x + 1))) + "%",
    line = make("div", { className: "scale" }),
    fill = make("i"),
    here = make("span", { className: "up", textContent: number(score) });
  fill.style.width = at(score);
  here.style.left = `clamp(1.5rem, ${at(score)}, calc(100% - 1.5rem))`;
  line.append(fill, here);
  for (const [x, text] of [
    [-1, "\u22121"],
    [1, "1"],
  ]) {
    const end = make("span", { className: "down", textContent: text });
    end.style.left = x < 0 ? ".4rem" : "calc(100% - .4rem)";
    line.append(end);
  }
  if (threshold !== null) {
    const mark = make("b"),
      label = make("span", { className: "down", textContent: "threshold " + number(threshold) });
    mark.style.left = at(threshold);
    label.style.left = `clamp(4rem, ${at(threshold)}, calc(100% - 4.5rem))`;
    line.append(mark, label);
  }
  return line;
}
function answerVerify(got) {
  const word = subjectWord(),
    said = got.same === null ? "No decision" : got.same ? `The same ${word}` : `Different ${word}s`;
  const facts = [fact("Score", number(got.score), got.similarity)];
  if (got.probability !== null)
    facts.push(
      fact("Probability", percent(got.probability), `if ${100 * got.prior} % of pairs are`),
    );
  if (got.threshold !== null) facts.push(fact("Threshold", number(got.threshold), got.source));
  const norms = `${number(got.norms[0])} / ${number(got.norms[1])}`;
  facts.push(state.norm_is_quality ? fact("Quality", norms, "norms") : fact("Norms", norms));
  const why =
    got.same === null
      ? make("p", {
          className: "soft",
          textContent:
            "The server has neither a threshold nor a calibration: start it with --far, --threshold " +
            "or --calibration.",
        })
      : "";
  show(
    make("p", {
      className: "verdict " + (got.same === null ? "" : got.same ? "good" : "bad"),
      textContent: said,
    }),
    why,
    scale(got.score, got.threshold, got.similarity),
    make("dl", {}, ...facts),
  );
}
function answerIdentify(got) {
  const said = !got.decided
    ? "Most similar"
    : got.identified !== null
      ? got.identified
      : "Nobody who is enrolled";
  const rows = got.matches.map((one) =>
    make(
      "tr",
      {},
      make("td", { textContent: one.subject }),
      make("td", {
        className: "n" + (one.accepted ? " good" : ""),
        textContent: number(one.score),
      }),
      make("td", { className: "n soft", textContent: number(one.norm) }),
    ),
  );
  const head = make(
    "tr",
    {},
    make("th", { textContent: "Enrolled" }),
    make("th", { className: "n", textContent: `Score (${got.similarity})` }),
    make("th", { className: "n", textContent: "Norm" }),
  );
  show(
    make("p", {
      className: "verdict " + (got.decided ? (got.identified !== null ? "good" : "bad") : ""),
      textContent: said,
    }),
    make("p", {
      className: "soft",
      textContent:
        got.threshold === null
          ? "No threshold: nobody is accepted or rejected."
          : `accepted from a score of ${number(got.threshold)}${got.source && ": " + got.source}`,
    }),
    rows.length
      ? make("table", {}, make("tbody", {}, head, ...rows))
      : make("p", { textContent: "The gallery is empty." }),
  );
}
async function list() {
  const box = $("entries");
  try {
    const got = await ask("gallery?limit=200"),
      rows = got.entries.map((one) => {
        const out = make("button", {
          className: "button small",
          textContent: "Remove",
          ariaLabel: `Remove ${one.subject}`,
        });
        out.onclick = () =>
          confirm(`Erase ${one.subject}?`) &&
          busy(
            "Removing \u2026",
            async () => {
              await ask("gallery/" + encodeURIComponent(one.subject), { method: "DELETE" });
              await list();
            },
            true,
          );
        return make(
          "tr",
          {},
          make("td", { textContent: one.subject }),
          make("td", { className: "n soft", textContent: `${one.enrolments} \u00d7` }),
          make("td", { className: "n" }, out),
        );
      });
    const more =
      got.subjects > rows.length
        ? make("p", { textContent: `and ${got.subjects - rows.length} more` })
        : "";
    box.replaceChildren(
      rows.length ? make("table", {}, make("tbody", {}, ...rows)) : "Nobody yet.",
      more,
    );
    ready();
  } catch (error) {
    box.replaceChildren(make("span", { className: "error", textContent: error.message }));
  }
}
const form = (fields) => {
  const body = new FormData();
  for (const [name, value] of Object.entries(fields))
    value instanceof Blob ? body.append(name, value, "upload") : body.append(name, value);
  return { method: "POST", body };
};
$("compare").onclick = () =>
  busy("Comparing \u2026", async () => {
    fits(held.first, held.second);
    const got = await ask("verify", form({ first: held.first, second: held.second }));
    return () => answerVerify(got);
  });
$("search").onclick = () =>
  busy("Searching \u2026", async () => {
    const got = await ask("identify", form({ file: held.probe }));
    return () => answerIdentify(got);
  });
$("enrol").onclick = () =>
  busy(
    "Enrolling \u2026",
    async () => {
      const sent = held.enrolment,
        got = await ask("enrol", form({ subject: $("subject").value.trim(), files: sent }));
      await list();
      return () => {
        if (held.enrolment === sent) empty("enrolment");
        show(
          make("p", { textContent: `${got.subject} is enrolled; ${got.subjects} in the gallery.` }),
        );
      };
    },
    true,
  );
$("subject").oninput = clear;
$("token").value = token;
$("token").oninput = () => {
  token = $("token").value.trim();
};
$("key").onsubmit = (event) => {
  event.preventDefault();
  if (state.gallery !== null) list();
};
for (const tab of $("tabs").children)
  tab.onclick = () => {
    for (const one of $("tabs").children) {
      const chosen = one === tab;
      one.setAttribute("aria-selected", chosen);
      $(one.dataset.tab).hidden = !chosen;
    }
    clear();
    if (tab.dataset.tab === "gallery") list();
  };
ask("health")
  .then((got) => {
    Object.assign(state, got);
    $("about").textContent =
      `${got.modality} model ${got.model.slice(0, 8)} \u00b7 ${got.similarity}`;
    if (got.gallery === null)
      for (const tab of $("tabs").children) if (tab.dataset.tab !== "verify") tab.hidden = true;
    if (got.token_for_reading) $("tabs").after($("key"));
    for (const place of ["first", "second", "probe", "enrolment"]) empty(place);
  })
  .catch(fail);
