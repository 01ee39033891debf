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
  const before = saidOf(box);
  box.setAttribute("aria-live", "off");
  box.replaceChildren(...lastAnswer());
  const after = saidOf(box);
  if (after !== before) $("spoken").textContent = after;
  requestAnimationFrame(() => box.setAttribute("aria-live", "polite"));
}

const saidOf = (box) =>
  [...box.querySelectorAll(".verdict, .certainty")].map((one) => one.textContent).join(": ");

function answer(draw) {
  lastAnswer = draw;
  show(...draw());
}

const sourceNote = () => source || (threshold === state.threshold ? "" : "chosen on this page");

function verdict(said, same, level) {
  const tone = same === null ? "" : level === null ? (same ? "good" : "bad") : `s${level + 2}`;
  return text("p", `verdict ${tone}`, said);
}

// The score between its lowest and its highest value, with the threshold.
function scale(score, similarity) {
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
  const [far, threshold, calibration] = ["--far", "--threshold", "--calibration"].map((one) =>
    text("code", "", one),
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

function drawVerify(got, seconds) {
  const word = subjectWord();
  const same = threshold === null ? got.same : got.score >= threshold;
  const said = same === null ? "No decision" : same ? `The same ${word}` : `Different ${word}s`;
  const level = same === null ? null : certainty(got.score, same, got.probability);
  const facts = [fact("Score", number(got.score), got.similarity)];
  if (got.probability !== null)
    facts.push(
      fact("Probability", percent(got.probability), `if ${100 * got.prior} % of pairs are`),
    );
  if (threshold !== null) facts.push(fact("Threshold", number(threshold), sourceNote()));
  const norms = `${number(got.norms[0])} / ${number(got.norms[1])}`;
  facts.push(state.norm_is_quality ? fact("Quality", norms, "norms") : fact("Norms", norms));
  facts.push(fact("Time", seconds < 0.1 ? "< 0.1 s" : `${seconds.toFixed(1)} s`));
  const why = same === null ? noDecision() : "";
  return [
    verdict(said, same, level),
    shades(level),
    why,
    scale(got.score, got.similarity),
    make("dl", {}, ...facts),
  ];
}

function drawIdentify(got) {
  if (!got.matches.length) return [text("p", "", "The gallery is empty.")];
  const accepts = (one) => threshold !== null && one.score >= threshold;
  const best = got.matches[0];
  const decided = threshold !== null;
  const said = !decided ? "Most similar" : accepts(best) ? best.subject : "Nobody who is enrolled";
  const rows = got.matches.map((one) =>
    make(
      "tr",
      {},
      text("td", "", one.subject),
      text("td", "n", number(one.score)),
      text("td", "n", decided ? (accepts(one) ? "\u2713 accepted" : "below") : ""),
      text("td", "n soft", number(one.norm)),
    ),
  );
  const head = make(
    "tr",
    {},
    text("th", "", "Enrolled"),
    text("th", "n", `Score (${got.similarity})`),
    text("th", "n", decided ? "Verdict" : ""),
    text("th", "n", "Norm"),
  );
  const level = decided ? certainty(best.score, accepts(best), null) : null;
  const note = sourceNote();
  const rule = decided
    ? `Accepted from a score of ${number(threshold)}${note && ": " + note}. ` +
      meaningAmong(threshold, state.gallery)
    : "No threshold: nobody is accepted or rejected.";
  return [
    verdict(said, decided ? accepts(best) : null, level),
    shades(level),
    text("p", "soft", rule),
    make("table", {}, make("thead", {}, head), make("tbody", {}, ...rows)),
  ];
}

$("compare").onclick = () =>
  busy("Comparing \u2026", async () => {
    fits(held.first, held.second);
    const begun = performance.now();
    const got = await ask(
      "verify",
      form({
        first: held.first,
        second: held.second,
        first_face: chosenFace.first,
        second_face: chosenFace.second,
      }),
    );
    const seconds = (performance.now() - begun) / 1000;
    return () => answer(() => drawVerify(got, seconds));
  });

$("search").onclick = () =>
  busy("Searching \u2026", async () => {
    const got = await ask("identify", form({ file: held.probe, face: chosenFace.probe }));
    return () => answer(() => drawIdentify(got));
  });
