"""`likeness recipes` lists recipes, shows one, and copies one. The work is in recipe_files.py."""

from pathlib import Path
from typing import Annotated

from likeness.commands._signature import command, refuse_idle
from likeness.eval.option import Option
from likeness.toolkit.console import say
from likeness.training import recipe_files


@command(epilog="Example: likeness recipes --copy speaker/an4 mine.py")
def recipes(
    *,
    name: Annotated[
        str, Option("NAME", help="A recipe whose description is printed, such as speaker/an4.")
    ] = "",
    copy: Annotated[
        tuple[str, Path] | None,
        Option(help="Write a copy of recipe NAME to the new file PATH."),
    ] = None,
) -> None:
    """List the recipes that `likeness train` and `likeness compare` take by name.

    With a name, print what the recipe's head says of it, and its variants.
    """
    if copy:
        refuse_idle("beside --copy", {"NAME": name or None})
        say(f"wrote {' and '.join(map(str, recipe_files.copy(*copy)))}")
    else:
        say(recipe_files.description(name) if name else recipe_files.table())
