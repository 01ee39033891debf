"""Draws the figures of the papers that show what trained models make of their test items.

    python examples/run_figures.py sphere --recipe image/vmf --data DATA --out vmf_fig4.png \\
        mnist.standard=runs/mnist/mnist.standard/seed-0 mnist.vmf=runs/mnist/mnist.vmf/seed-0
    python examples/run_figures.py norms --baseline runs/cosine --run runs/el_nivmf \\
        --correct recall@1 --out nivmf_fig9.png
    python examples/run_figures.py ordered --recipe image/omniglot_losses:el_nivmf --data DATA \\
        --run runs/el_nivmf --training --out nivmf_fig11.png
    python examples/run_figures.py extremes --recipe image/vmf:mnist.cosine --data DATA \\
        --run runs/mnist/mnist.cosine/seed-0 --out vmf_fig1.png

- `sphere` shows embeddings in three dimensions of the test items, in the colours of their classes
  (Scott et al. 2021, Fig. 4). Each VARIANT=RUN is a panel. As there, embeddings of the vMF loss are
  drawn as directions, and all others as they are.
- `norms` splits the test items by whether a baseline was right about them, and shows the norms that
  another run gives to both kinds (Kirchhof et al. 2022, Fig. 9). Both runs have a test.npz, which
  `likeness train` and `likeness compare` write.
- `ordered` shows test images of a few classes, one class a row, from the lowest to the highest norm
  (Kirchhof et al. 2022, Fig. 11).
- `extremes` shows the test images of the lowest norms, and below them those of the highest (Scott
  et al. 2021, Fig. 1, 3 and 6 to 10; Kirchhof et al. 2022, Fig. 6 and 10).

With --training these two take the images that were trained on, as Kirchhof et al. do.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import numpy as np
from comparison_figures import plt, save
from numpy.typing import NDArray

from likeness.eval.items.items import Items
from likeness.losses import VMF
from likeness.metrics import per_item
from likeness.recipe import Classification, Recipe, Retrieval, one_sentence
from likeness.toolkit.models.embed import embed
from likeness.toolkit.training import recipe as recipes
from likeness.toolkit.training.measure import load_model
from likeness.toolkit.training.recipe import fit_to_data
from likeness.training.recipe_files import locate

FIGURES = ("sphere", "norms", "ordered", "extremes")


def embedded(
    recipe: Recipe, run: Path, data: Path, training: bool = False
) -> tuple[Items, NDArray[np.float32]]:
    """Return the test items of a run, or its training items, and their raw embeddings (N, D).

    Raises:
        ValueError: The recipe is measured by trials, which have no classes.
    """
    if not isinstance(recipe.measure, Classification | Retrieval):
        raise ValueError("the recipe has no test items with classes; take one of images")
    items = Items.of(recipe.items(data) if training else recipe.measure.items(data))
    loaded = load_model(run, fit_to_data(recipe, data))
    return items, embed(loaded.embedder, items, loaded.read, batch_size=256)[0].matrix


def sphere(panels: dict[str, Path], recipe: str, data: Path, out: Path, most: int) -> None:
    """Draw test items in three dimensions, one panel for each variant.

    Embeddings are drawn as they are, and those of the vMF loss as directions.

    Args:
        panels: The runs' folders by the variant of each.
        recipe: The recipe that has these variants.
        data: The data.
        out: The PNG file.
        most: The largest number of items in a panel.

    Raises:
        ValueError: The embeddings of a run do not have three dimensions.
    """
    figure = plt.figure(figsize=(4 * len(panels), 4), layout="constrained")
    for number, (variant, run) in enumerate(panels.items()):
        made = recipes.load(locate(f"{recipe}:{variant}"))[0]
        items, points = embedded(made, run, data)
        if points.shape[1] != 3:
            raise ValueError(
                f"{run}: its embeddings have {points.shape[1]} dimensions; train with "
                "backbone.dim=3"
            )
        drawn = np.random.default_rng(0).permutation(len(items))[:most]
        classes = np.unique([item.label for item in items], return_inverse=True)[1]
        if isinstance(made.loss(3, 1), VMF):
            points = points / np.linalg.norm(points, axis=1, keepdims=True)
        panel = figure.add_subplot(1, len(panels), number + 1, projection="3d")
        colours = plt.get_cmap("tab10")(classes[drawn] % 10)
        panel.scatter(*points[drawn].T, c=colours, s=2)
        panel.set_title(variant)
    save(figure, out)


def norms(baseline: Path, run: Path, correct: str, out: Path) -> tuple[float, float]:
    """Draw the norms of items that a baseline got right, and of those that it got wrong.

    Returns:
        The means of both.

    Raises:
        ValueError: The runs were tested on different items.
    """
    first, second = (per_item.read(path / "test.npz") for path in (baseline, run))
    if first.digest != second.digest:
        raise ValueError(f"{baseline} and {run} were tested on different items")
    right, sizes = first.columns[correct] > 0, second.columns["norm"]
    figure, axes = plt.subplots(figsize=(5, 3.5), layout="constrained")
    edges = np.linspace(sizes.min(), sizes.max(), 40)
    for which, name in ((right, "right"), (~right, "wrong")):
        label = f"the baseline is {name} ({which.sum():,})"
        axes.hist(sizes[which], edges, density=True, alpha=0.6, label=label)
    axes.set(xlabel="norm of the embedding", ylabel="density", yticks=[])
    axes.legend(frameon=False)
    save(figure, out)
    return float(sizes[right].mean()), float(sizes[~right].mean())


def ordered(
    recipe: Recipe, run: Path, data: Path, out: Path, *, num: int, training: bool = False
) -> list[list[str]]:
    """Draw images of a few classes, each row from the lowest to the highest norm.

    Args:
        recipe: Whose items and reading are taken.
        run: The run's folder.
        data: The data.
        out: The PNG file.
        num: The number of classes.
        training: Whether training images are drawn in place of test images.

    Returns:
        The ids that were drawn, row by row.
    """
    items, matrix = embedded(recipe, run, data, training)
    sizes = np.linalg.norm(matrix, axis=1)
    labels = np.array([item.label for item in items])
    names = np.unique(labels)
    chosen = np.random.default_rng(0).permutation(names)[:num]
    rows = [np.flatnonzero(labels == name) for name in chosen]
    rows = [row[np.argsort(sizes[row], kind="stable")] for row in rows]
    rows = [
        row[np.linspace(0, len(row) - 1, min(10, len(row))).round().astype(int)] for row in rows
    ]
    return draw(recipe, items, sizes, rows, out)


def extremes(
    recipe: Recipe, run: Path, data: Path, out: Path, *, num: int, training: bool = False
) -> list[list[str]]:
    """Draw the images of the lowest norms in rows of eight, and below those of the highest.

    Args:
        recipe: Whose items and reading are taken.
        run: The run's folder.
        data: The data.
        out: The PNG file.
        num: How many of both.
        training: Whether training images are drawn in place of test images.

    Returns:
        The ids that were drawn, row by row; lowest norms first in each half.
    """
    items, matrix = embedded(recipe, run, data, training)
    sizes = np.linalg.norm(matrix, axis=1)
    order = np.argsort(sizes, kind="stable")
    num = min(num, len(order) // 2)
    rows = [
        half[start : start + 8]
        for half in (order[:num], order[len(order) - num :])
        for start in range(0, num, 8)
    ]
    return draw(recipe, items, sizes, rows, out)


def draw(
    recipe: Recipe,
    items: Items,
    sizes: NDArray[np.float32],
    rows: list[NDArray[np.int64]],
    out: Path,
) -> list[list[str]]:
    """Draw rows of images, each under its norm.

    Args:
        recipe: Reads the images.
        items: All items.
        sizes: Their norms (N,).
        rows: The places of the items that are drawn, row by row.
        out: The PNG file.

    Returns:
        The ids that were drawn, row by row.
    """
    width = max(map(len, rows))
    size = 1.1 * width, 1.3 * len(rows)
    figure, panels = plt.subplots(
        len(rows), width, figsize=size, layout="constrained", squeeze=False
    )
    for panel in panels.flat:
        panel.set_axis_off()
    for row, places in zip(panels, rows, strict=True):
        for panel, place in zip(row, places, strict=False):
            pixels = np.asarray(recipe.read(items[int(place)]), dtype=np.float32)
            shown = pixels.transpose(1, 2, 0) / max(float(pixels.max()), 1e-9)
            panel.imshow(shown.squeeze(), cmap="gray", vmin=0, vmax=1)
            panel.set_title(f"{sizes[place]:#.3g}", fontsize=7)
    save(figure, out)
    return [[items[int(place)].id for place in places] for places in rows]


def draw_figure(given: argparse.Namespace) -> None:
    """Draw what a parsed command asks for.

    Raises:
        ValueError: The runs, the recipe or the data do not suit the figure.
        OSError: A file cannot be read or written.
    """
    if given.figure == "sphere":
        parts = [panel.partition("=") for panel in given.panels]
        panels = {variant: Path(run) for variant, _, run in parts}
        sphere(panels, given.recipe, given.data, given.out, given.most)
    elif given.figure == "norms":
        right, wrong = norms(given.baseline, given.run, given.correct, given.out)
        print(f"mean norm where the baseline is right {right:.4g}, where it is wrong {wrong:.4g}")
    else:
        recipe = recipes.load(locate(given.recipe))[0]
        images = ordered if given.figure == "ordered" else extremes
        images(recipe, given.run, given.data, given.out, num=given.num, training=given.training)


def main(arguments: list[str] | None = None) -> None:
    """Draw the figure that the command names."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    commands = parser.add_subparsers(dest="figure", required=True)
    for name in FIGURES:
        command = commands.add_parser(name)
        command.add_argument("--out", type=Path, required=True, help="the PNG file")
        if name != "norms":
            command.add_argument("--recipe", required=True, help="as for likeness train")
            command.add_argument("--data", type=Path, required=True)
        if name == "sphere":
            command.add_argument("panels", nargs="+", metavar="VARIANT=RUN")
            command.add_argument("--most", type=int, default=3000, help="items of a panel")
        else:
            command.add_argument("--run", type=Path, required=True)
        if name == "norms":
            command.add_argument("--baseline", type=Path, required=True)
            command.add_argument("--correct", default="correct", help="a column of test.npz")
        if name == "ordered":
            command.add_argument("--classes", dest="num", type=int, default=4)
        if name == "extremes":
            command.add_argument("--images", dest="num", type=int, default=32)
        if name in ("ordered", "extremes"):
            command.add_argument("--training", action="store_true", help="images trained on")
    options = parser.parse_args(arguments)
    with one_sentence("run_figures.py"):
        draw_figure(options)
        print(options.out)


if __name__ == "__main__":
    main()
