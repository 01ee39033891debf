// Images and recordings: what is shown again is copied, images are enlarged, and one recording is
// heard at a time.
const first = new Map(all("[data-item]").map((each) => [each.dataset.item, each]));
for (const each of all("[data-again]")) {
  const copy = first.get(each.dataset.again);
  if (copy) each.replaceChildren(...[...copy.childNodes].map((node) => node.cloneNode(true)));
  if (copy?.dataset.seconds) each.dataset.seconds = copy.dataset.seconds;
}
// The recordings of a trial stand on one scale of time, one above the other.
for (const pair of all(".pair")) {
  const sounds = all("[data-seconds]", pair);
  const shown = sounds.map((each) => Math.min(Number(each.dataset.seconds), 10));
  sounds.forEach((each, i) => {
    const width = `${Math.max(8, (100 * shown[i]) / Math.max(...shown))}%`;
    each.querySelector("img").style.width = width;
  });
}
const [large, caption] = [make("img"), make("p")];
const close = make("button", { type: "button", textContent: "Close" });
const dialog = make("dialog", {}, large, caption, close);
close.addEventListener("click", () => dialog.close());
dialog.setAttribute("aria-label", "Enlarged image");
for (const image of all("img")) {
  const open = button("", `Enlarge ${image.alt}`, () => {
    large.src = image.src;
    large.alt = image.alt;
    large.className = image.className;
    caption.textContent = image.alt;
    document.body.append(dialog);
    dialog.showModal();
  });
  open.className = "enlarge";
  image.replaceWith(open);
  open.append(image);
}
// Only one recording is heard at a time.
document.addEventListener("play", ({ target }) => {
  for (const each of all("audio")) if (each !== target) each.pause();
}, true);
