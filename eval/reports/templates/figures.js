// Figures: BokehJS draws them, and they are saved and printed.
const figures = []; // { figure, view, models }
const softInk = () =>
  getComputedStyle(document.documentElement).getPropertyValue("--soft").trim();
const AXES = ["axis_label_text_color", "major_label_text_color"];
const recolour = ({ models }, colour, names = [...AXES, "label_text_color"]) => {
  for (const model of models)
    for (const name of names)
      if (name in model.properties) model[name] = colour;
};
const columnsOf = (models) => {
  const rows = [];
  for (const model of models) {
    if (model.type !== "GlyphRenderer" || model.tags.includes("no csv")) continue;
    const data = model.data_source.data;
    const columns = data instanceof Map ? [...data] : Object.entries(data);
    if (!columns.length || !columns[0][1].length) continue;
    rows.push([model.name ?? "", ...columns.map(([name]) => name)]);
    for (let i = 0; i < columns[0][1].length; i++)
      rows.push(["", ...columns.map(([, values]) => values[i])]);
  }
  return rows;
};
const printable = ({ view }) => view.export("svg").ctx.get_serialized_svg(true);
const draw = async (figure, number) => {
  const item = parsed(figure.querySelector("script"));
  const holder = figure.querySelector(".drawing");
  const manager = await Bokeh.embed.embed_item(item, holder);
  const view = [...manager.roots][0];
  const models = [...view.model.references()];
  const drawn = { figure, view, models, swatches: [] };
  recolour(drawn, softInk());
  figures.push(drawn);
  sight.observe(figure);
  const name = `${anchor(figure)}-${number + 1}`;
  const label = holder.getAttribute("aria-label").split(".")[0];
  figure.append(
    make(
      "div",
      { className: "actions" },
      ...["png", "svg"].map((kind) =>
        button(kind.toUpperCase(), `Save as ${kind.toUpperCase()}: ${label}`, async () =>
          save(await view.export(kind).to_blob(), `${name}.${kind}`),
        ),
      ),
      button("CSV", `Save the numbers: ${label}`, () =>
        save(csv(columnsOf(models)), `${name}.csv`),
      ),
    ),
  );
  for (const model of models) for (const tag of model.tags ?? []) tagged(tag, model, drawn);
  if (models.some((model) => model.type === "Legend"))
    // Legends hold small images, which paper shows only if the browser has decoded them before.
    for (const [, source] of printable(drawn).matchAll(/<image[^>]*href="([^"]+)"/g))
      drawn.swatches.push(Object.assign(new Image(), { src: source }));
};
