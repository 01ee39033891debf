"""The commands of the command line, each of which adds itself to `app`, and what they share."""

import typer

app = typer.Typer(
    name="likeness",
    context_settings={"help_option_names": ["-h", "--help"]},
    no_args_is_help=True,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
)
