// Answers: what the server found, and what follows from the threshold that holds now.
let lastAnswer = null; // what draws the answer that is shown; null where there is none to judge

const fact = (name, value, note = "") =>
  make(
    "div",
    { className: note.length > 24 ? "wide" : "" },
    text("dt", "", name),
    make("dd", {}, value, " ", text("small", "", note)),
  );

// After the slider was moved: the same answer, judged anew. The whole of it is not read out again,
// only a verdict that has changed.
function judgeAgain() {
  if (!lastAnswer) return;
  const box = $("answer");
  const before = verdictIn(box);
  box.setAttribute("aria-live", "off");
  box.replaceChildren(...lastAnswer());
  const after = verdictIn(box);
  if (after !== before) $("spoken").textContent = after;
  requestAnimationFrame(() => box.setAttribute("aria-live", "polite"));
}

const verdictIn = (box) =>
  [...box.querySelectorAll(".verdict, .certainty")].map((line) => line.textContent).join(": ");

function answer(draw) {
  lastAnswer = draw;
  show(...draw());
}

const sourceNote = () => source || (threshold === state.threshold ? "" : "chosen on this page");

function verdict(words, same, level) {
  const tone = same === null ? "" : level === null ? (same ? "good" : "bad") : `s${level + 2}`;
  return text("p", `verdict ${tone}`, words);
}

// The score between its lowest and its highest value, with the threshold.
function scale(score, similarity) {
  $("score-there").hidden = true;
  if (places.length > 1) return markScore(score) || "";
  if (similarity !== "cosine") return "";
  const at = (x) => Math.max(0, Math.min(100, 50 * (x + 1))) + "%";
  const line = make("div", { className: "scale", ariaHidden: "true" });
  const fill = make("i");
  const here = text("span", "up", number(score));
  fill.style.width = at(score);
  here.style.left = `clamp(1.5rem, ${at(score)}, calc(100% - 1.5rem))`;
  line.append(fill, here);
  for (const [x, name] of [
    [-1, "\u22121"],
    [1, "1"],
  ]) {
    const end = text("span", "down", name);
    end.style.left = x < 0 ? ".4rem" : "calc(100% - .4rem)";
    line.append(end);
  }
  if (threshold !== null) {
    const mark = make("b");
    const label = text("span", "down", "threshold " + number(threshold));
    mark.style.left = at(threshold);
    label.style.left = `clamp(4.5rem, ${at(threshold)}, calc(100% - 5rem))`;
    line.append(mark, label);
  }
  return line;
}

function noDecision() {
  const [far, threshold, calibration] = ["--far", "--threshold", "--calibration"].map((option) =>
    text("code", "", option),
  );
  const remedy = places.length
    ? "Move the slider below, or give the server a rule:"
    : "The server has neither a threshold nor a calibration:";
  return make(
    "p",
    { className: "soft" },
    `${remedy} start it with `,
    far,
    ", ",
    threshold,
    " or ",
    calibration,
    ".",
  );
}

function drawVerify(comparison, seconds) {
  const word = subjectWord();
  const same = threshold === null ? comparison.accepted : comparison.score >= threshold;
  const words = same === null ? "No decision" : same ? `The same ${word}` : `Different ${word}s`;
  const level = same === null ? null : certainty(comparison.score, same, comparison.probability);
  const facts = [fact("Score", number(comparison.score), comparison.similarity)];
  if (comparison.probability !== null) {
    const prior = `if ${100 * comparison.prior} % of pairs are`;
    facts.push(fact("Probability", percent(comparison.probability), prior));
  }
  if (threshold !== null) facts.push(fact("Threshold", number(threshold), sourceNote()));
  const norms = `${number(comparison.norms[0])} / ${number(comparison.norms[1])}`;
  if (state.norm_is_quality) facts.push(fact("Quality", norms, "norms"));
  facts.push(fact("Time", seconds < 0.1 ? "< 0.1 s" : `${seconds.toFixed(1)} s`));
  const why = same === null ? noDecision() : "";
  return [
    verdict(words, same, level),
    shades(level),
    why,
    scale(comparison.score, comparison.similarity),
    make("dl", {}, ...facts),
  ];
}

function drawIdentify(search) {
  if (!search.matches.length) return [text("p", "", "The gallery is empty.")];
  const accepts = (match) => threshold !== null && match.score >= threshold;
  const best = search.matches[0];
  const decided = threshold !== null;
  const level = decided ? certainty(best.score, accepts(best), null) : null;
  const found = accepts(best) ? best.subject : "Nobody who is enrolled";
  const words = !decided ? "Most similar" : level === 0 ? `Perhaps ${best.subject}` : found;
  const rows = search.matches.map((match) =>
    make(
      "tr",
      {},
      text("td", "", match.subject),
      text("td", "n", number(match.score)),
      text("td", "n", decided ? (accepts(match) ? "\u2713 accepted" : "below") : ""),
      state.norm_is_quality ? text("td", "n soft", number(match.norm)) : "",
    ),
  );
  const head = make(
    "tr",
    {},
    text("th", "", "Enrolled"),
    text("th", "n", `Score (${search.similarity})`),
    text("th", "n", decided ? "Verdict" : ""),
    state.norm_is_quality ? text("th", "n", "Quality") : "",
  );
  const note = sourceNote();
  const rule = decided
    ? `Accepted from a score of ${number(threshold)}${note && ": " + note}. ` +
      meaningAmong(threshold, state.gallery)
    : "No threshold: nobody is accepted or rejected.";
  return [
    verdict(words, decided ? accepts(best) : null, level),
    shades(level),
    text("p", "soft", rule),
    make("table", {}, make("thead", {}, head), make("tbody", {}, ...rows)),
  ];
}

$("compare").onclick = () =>
  busy("Comparing \u2026", async () => {
    fits(blobs.first, blobs.second);
    const begun = performance.now();
    const comparison = await ask(
      "verify",
      form({
        first: blobs.first,
        second: blobs.second,
        first_face: chosenFace.first,
        second_face: chosenFace.second,
      }),
    );
    const seconds = (performance.now() - begun) / 1000;
    return () => answer(() => drawVerify(comparison, seconds));
  });

$("search").onclick = () =>
  busy("Searching \u2026", async () => {
    const search = await ask("identify", form({ file: blobs.probe, face: chosenFace.probe }));
    return () => answer(() => drawIdentify(search));
  });
