// The threshold: one slider moves the marks on figures, the counts and the verdicts of trials.
const sliders = new Map(); // system -> what moves with its threshold
const bar = document.querySelector(".bar");
const range = bar?.querySelector("input");
const chooser = bar?.querySelector("select");
let chosen; // the system that the slider moves
// The marked trials by rising score, of which a move changes those between two thresholds.
const ranked = (rows) => {
  const trials = rows
    .map((row) => ({
      row,
      score: Number(row.dataset.score),
      verdict: row.querySelector(".verdict"),
    }))
    .sort((a, b) => a.score - b.score);
  return { trials, scores: trials.map(({ score }) => score), rejected: null };
};
// How many of the rising numbers lie below a bound.
const below = (numbers, bound) => {
  let [low, high] = [0, numbers.length];
  while (low < high) {
    const middle = (low + high) >> 1;
    if (numbers[middle] < bound) low = middle + 1;
    else high = middle;
  }
  return low;
};
const judge = (slider, threshold) => {
  const rejected = below(slider.scores, threshold);
  const [from, to] = [rejected, slider.rejected ?? 0].sort((a, b) => a - b);
  const changed = slider.rejected === null ? slider.trials : slider.trials.slice(from, to);
  slider.rejected = rejected;
  for (const { row, score, verdict } of changed) {
    const accept = score >= threshold;
    const wrong = accept !== (row.dataset.target === "1");
    row.classList.toggle("wrong", wrong);
    verdict.textContent = (wrong ? "\u2717 false " : "\u2713 ") + (accept ? "accept" : "reject");
  }
};
for (const points of all(".operating .points")) {
  const data = parsed(points.querySelector("script"));
  const of = (selector) => all(selector).filter((each) => each.dataset.system === data.system);
  sliders.set(data.system, {
    ...data,
    points,
    marks: [],
    buttons: all("button", points),
    cells: Object.fromEntries(
      all("td", of(".operating tr")[0]).map((cell) => [cell.dataset.key, cell]),
    ),
    ...ranked(of("tr[data-score]")),
    at: data.start,
  });
}
let speaking;
const place = (slider) => {
  const i = slider.at;
  const accepted = slider.false_accepts[i] / slider.nontargets;
  const rejected = slider.false_rejects[i] / slider.targets;
  return { i, accepted, rejected, threshold: slider.thresholds[i] };
};
const moveMark = ({ mark, model }, slider) => {
  const { i, threshold } = place(slider);
  if (mark === "threshold") {
    if (model.type === "Span") model.location = threshold;
    else model.left = threshold;
  } else model.data = { x: [slider.x[i]], y: [slider.y[i]] };
};
// The figures in sight follow in the next frame, the others when they come into sight.
let framed = null;
let movedAt = -Infinity;
const moveMarks = (everywhere = false) => {
  framed = null;
  for (const slider of sliders.values()) {
    if (slider.moved) for (const mark of slider.marks) mark.stale = true;
    slider.moved = false;
    for (const mark of slider.marks)
      if (mark.stale && (mark.drawn.seen || everywhere === true)) {
        mark.stale = false;
        moveMark(mark, slider);
      }
  }
};
const sight = new IntersectionObserver((entries) => {
  for (const { target, isIntersecting } of entries) {
    const drawn = figures.find((each) => each.figure === target);
    if (drawn) drawn.seen = isIntersecting;
  }
  moveMarks();
});
const reading = (share, kind) => {
  const number = Math.max(1, Math.round(1 / share));
  if (share === 0) return `no ${kind} trial is`;
  if (number === 1) return `nearly every ${kind} trial is`;
  return `1 in ${counted(number)} ${kind} trials is`;
};
const show = (slider) => {
  const { i, accepted, rejected, threshold } = place(slider);
  const cells = {
    threshold: minus(threshold.toFixed(4)),
    far: (100 * accepted).toFixed(3),
    frr: (100 * rejected).toFixed(3),
    false_accepts: `${counted(slider.false_accepts[i])} of ${counted(slider.nontargets)}`,
    false_rejects: `${counted(slider.false_rejects[i])} of ${counted(slider.targets)}`,
  };
  for (const [key, text] of Object.entries(cells)) slider.cells[key].textContent = text;
  if (slider === chosen) {
    range.value = i;
    const text = `${cells.threshold}: FAR ${cells.far} %, FRR ${cells.frr} %`;
    bar.querySelector("output").value = text;
    range.setAttribute("aria-valuetext", text);
  }
  for (const each of slider.buttons) each.setAttribute("aria-pressed", Number(each.value) === i);
  judge(slider, threshold);
  slider.moved = true;
  movedAt = performance.now();
  framed ??= requestAnimationFrame(moveMarks);
  clearTimeout(speaking);
  speaking = setTimeout(() => {
    document.querySelector(".operating .live").textContent =
      `${sliders.size > 1 ? `${slider.system}: at` : "At"} threshold ${cells.threshold}, ` +
      `${reading(accepted, "nontarget")} accepted and ${reading(rejected, "target")} rejected.`;
  }, 250);
};
const sameRate = (other, share) => {
  // The lowest threshold whose false accept rate is at most that share; the last accepts nothing.
  let low = 0;
  let high = other.thresholds.length - 1;
  while (low < high) {
    const middle = (low + high) >> 1;
    if (other.false_accepts[middle] / other.nontargets <= share) high = middle;
    else low = middle + 1;
  }
  return low;
};
const move = (slider, position) => {
  slider.at = position;
  show(slider);
  if (document.querySelector(".together input")?.checked)
    for (const other of sliders.values())
      if (other !== slider) {
        other.at = sameRate(other, place(slider).accepted);
        show(other);
      }
};
const choose = (slider) => {
  chosen = slider;
  range.max = slider.thresholds.length - 1;
  for (const other of sliders.values()) other.points.hidden = other !== slider;
  show(slider);
};
for (const slider of sliders.values()) {
  for (const each of slider.buttons)
    each.addEventListener("click", () => move(slider, Number(each.value)));
  show(slider);
}
if (bar) {
  choose(sliders.values().next().value);
  range.addEventListener("input", () => move(chosen, Number(range.value)));
  chooser?.addEventListener("change", () => choose(sliders.get(chooser.value)));
}
const tagged = (tag, model, drawn) => {
  if (tag.mark && sliders.has(tag.system)) {
    const slider = sliders.get(tag.system);
    slider.marks.push({ mark: tag.mark, model, drawn, stale: false });
    moveMark(slider.marks.at(-1), slider);
  }
  if (tag.map) explore(tag, model, drawn);
};
