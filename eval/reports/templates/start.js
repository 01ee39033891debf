// The start: colours, paper, and the order in which figures are drawn.
matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => {
  for (const each of figures) recolour(each, softInk());
});
let folded = [];
addEventListener("beforeprint", () => {
  folded = all("details:not([open])");
  for (const each of folded) each.open = true;
  moveMarks(true);
  for (const figure of waiting.keys()) {
    const label = figure.querySelector(".drawing").getAttribute("aria-label");
    const textContent = `Not drawn yet: ${label}. Print again.`;
    figure.append(make("p", { className: "printed", textContent }));
  }
  for (const each of figures) {
    recolour(each, "#444", AXES); // a legend would lose its lines until the next frame
    const holder = make("div", { className: "printed", innerHTML: printable(each) });
    const drawing = holder.querySelector("svg");
    if (drawing) {
      const size = [drawing.getAttribute("width"), drawing.getAttribute("height")];
      drawing.setAttribute("viewBox", `0 0 ${size.join(" ")}`);
    }
    each.figure.querySelector(".drawing").after(holder);
  }
});
addEventListener("afterprint", () => {
  all(".printed").forEach((each) => each.remove());
  for (const each of folded) each.open = false;
  for (const each of figures) recolour(each, softInk());
});
const waiting = new Map(all("figure.plot").map((figure, number) => [figure, number]));
const isNear = (figure) => {
  const { top, bottom } = figure.getBoundingClientRect();
  return figure.offsetParent && bottom > -innerHeight && top < 2 * innerHeight;
};
const pause = (milliseconds) => new Promise((next) => setTimeout(next, milliseconds));
const idle = async () => {
  while (performance.now() - movedAt < 300) await pause(100);
  await new Promise((next) =>
    window.requestIdleCallback ? requestIdleCallback(next, { timeout: 300 }) : setTimeout(next, 50),
  );
};
// What is near the window first; the rest, which paper needs, while nothing else happens.
const start = async () => {
  if (window.Bokeh) Bokeh.logger.set_level("warn");
  else waiting.clear();
  while (waiting.size) {
    await pause(0); // the page answers in between
    let figure = [...waiting.keys()].find(isNear);
    if (!figure) {
      await idle();
      figure = [...waiting.keys()].find(isNear) ?? waiting.keys().next().value;
    }
    const number = waiting.get(figure);
    await draw(figure, number);
    waiting.delete(figure);
  }
  performance.mark("drawn");
  document.documentElement.dataset.drawn = figures.length;
};
for (const figure of waiting.keys())
  figure.querySelector(".drawing").style.minHeight = `${figure.dataset.height}px`;
performance.mark("ready");
start();
