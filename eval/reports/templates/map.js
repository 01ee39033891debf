// The map of the embeddings: a point says what it is and its neighbours.
const explore = (tag, source, { figure }) => {
  const holder = figure.closest(".map");
  const points = parsed(holder.querySelector(":scope > script"));
  const about = holder.querySelector(".about");
  const search = holder.querySelector("input");
  const number = new Map(points.ids.map((id, i) => [id, i]));
  const select = (indices) => (source.selected.indices = indices);
  const jump = (i) =>
    make("button", { type: "button", textContent: points.ids[i], onclick: () => select([i]) });
  const describe = () => {
    const indices = [...source.selected.indices];
    if (!indices.length) return;
    if (indices.length > 1) {
      const text = `${counted(indices.length)} items of ${points.classes[indices[0]]}`;
      about.replaceChildren(make("p", { textContent: text }));
      return;
    }
    const [i] = indices;
    const own = points.classes[i];
    const shown = first.get(points.ids[i]);
    const near = points.neighbours[i].map((k) => {
      const mark = own ? (points.classes[k] === own ? "\u2713 " : "\u2717 ") : "";
      return make("li", {}, mark, jump(k), own ? ` ${points.classes[k]}` : "");
    });
    const name = make("strong", { textContent: points.ids[i] });
    about.replaceChildren(
      make("p", {}, name, `${own ? `, class ${own}` : ""}, norm ${points.norms[i]}`),
      ...(shown ? [shown.cloneNode(true)] : []),
      make("h4", { textContent: "Nearest by cosine, of those on the map" }),
      make("ul", {}, ...near),
    );
  };
  source.selected.properties.indices.change.connect(describe);
  const names = make("datalist", { id: `items-${figures.length}` });
  for (const name of new Set([...points.classes, ...points.ids]))
    if (name) names.append(make("option", { value: name }));
  search.setAttribute("list", names.id);
  search.after(names);
  search.addEventListener("change", () => {
    if (number.has(search.value)) select([number.get(search.value)]);
    else select(points.classes.flatMap((name, i) => (name === search.value ? [i] : [])));
  });
};
