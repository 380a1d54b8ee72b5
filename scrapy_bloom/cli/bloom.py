"""Inspect, move and repair the Bloom filter of a crawl.

In a project an action takes the name of a spider; elsewhere --key and --redis-url locate the filter.
`scrapy bloom ACTION --help` lists the options of an action, with examples. -s NAME=VALUE may come before or after it.

exit codes:
  0: done, or the answer is yes
  1: the answer is no
  2: refused, or invalid options
  3: Redis is unreachable
  130: stopped by Ctrl-C
  141: the reader of the output closed it before the action ended
"""

# Scrapy loads this module for every command, so its imports must be cheap.

import argparse
import sys
from importlib import import_module
from typing import Any, ClassVar, NoReturn

from scrapy.commands import ScrapyCommand
from scrapy.exceptions import UsageError
from scrapy.utils.conf import arglist_to_dict

ACTIONS = {
    "plan": "compute the memory of a filter before you create it",
    "info": "show how full a filter is, and the state of its workers",
    "doctor": "find settings and faults that lose pages, with advice",
    "check": "show whether a request would be dropped as a duplicate, and why",
    "forget": "forget pages, so that they are fetched again",
    "import": "move scrapy-redis's SET, or a file, into a filter",
    "export": "write a filter to a file",
    "restore": "restore a filter from an exported file",
    "clear": "delete a filter",
    "requeue": "move dead letters and failed requests back to the queue",
}
# Scrapy 2.13 creates a CrawlerProcess for every command, newer versions only for commands that require it.
_HAS_CRAWLER_PROCESS = not hasattr(ScrapyCommand, "requires_crawler_process")

# The docstring is the help, as an action's is.
_PURPOSE, _, _HELP = (__doc__ or "").partition(".\n")


def module_of(action: str) -> Any:
    """Return the module of an action, which has the functions `add_options` and `run`; its docstring is the help."""
    return import_module(f"scrapy_bloom.cli.{'import_' if action == 'import' else action}")


class _Parser(argparse.ArgumentParser):
    """A parser that hides the passwords of misplaced URLs."""

    def error(self, message: str) -> NoReturn:
        super().error(import_module("scrapy_bloom.transport.failures").hide_credentials(message))


class Command(ScrapyCommand):
    """The command behind the entry point group `scrapy.commands`."""

    requires_crawler_process = False
    default_settings: ClassVar[dict[str, Any]] = {"LOG_ENABLED": False}

    def syntax(self) -> str:
        """Return the usage, without the name of the command."""
        return "[-s NAME=VALUE] ACTION [options]"

    def short_desc(self) -> str:
        """Return the line for Scrapy's list of commands."""
        return _PURPOSE

    def add_options(self, parser: argparse.ArgumentParser) -> None:
        """Add the action; all arguments after its name belong to the action."""
        super().add_options(parser)
        listed = "\n".join(f"  {name:<8} {purpose}" for name, purpose in ACTIONS.items())
        parser.formatter_class = argparse.RawDescriptionHelpFormatter
        parser.epilog = f"actions:\n{listed}\n{_HELP}"
        parser.add_argument("action", nargs="?", metavar="ACTION", help="see below")
        parser.add_argument("rest", metavar="options", nargs=argparse.REMAINDER, help="options of the action")

    def process_options(self, args: list[str], opts: argparse.Namespace) -> None:
        """Read the options; if Scrapy would create a CrawlerProcess before `run`, run the action at once.

        That process fails with a traceback and exit code 1 if an add-on or a spider cannot be imported.
        """
        self.read_options(args, opts)
        if _HAS_CRAWLER_PROCESS and not opts.profile:
            self.run(args, opts)
            sys.exit(self.exitcode)

    def read_options(self, args: list[str], opts: argparse.Namespace) -> None:
        """Read the options of the action and its settings (-s)."""
        super().process_options(args, opts)
        assert self.settings is not None  # noqa: S101  # Scrapy has set them
        if args:
            raise UsageError(f"{args[0]}: no such option", print_help=False)
        if opts.action not in ACTIONS:
            fault = "give an ACTION" if opts.action is None else f"{opts.action!r} is not an action; give one of them"
            raise UsageError(f"{fault}: {', '.join(ACTIONS)}; --help describes them", print_help=False)
        self._module = module_of(opts.action)
        raw: Any = argparse.RawDescriptionHelpFormatter
        name, about = f"scrapy bloom {opts.action}", self._module.__doc__
        parser = _Parser(prog=name, description=about, formatter_class=raw, allow_abbrev=False)
        self._module.add_options(parser)
        parser.add_argument("--json", action="store_true", help="print one JSON object")
        pairs: dict[str, Any] = {"action": "append", "default": [], "metavar": "NAME=VALUE"}
        parser.add_argument("-s", "--set", help="set a setting; may be repeated", **pairs)
        parser.add_argument("-a", "--argument", help="set an argument of the spider; may be repeated", **pairs)
        self._options = parser.parse_args(opts.rest)
        # The destination of an option may be the name of a setting.
        given = {name: value for name, value in vars(self._options).items() if name.isupper() and value is not None}
        try:
            self.settings.setdict({**arglist_to_dict(self._options.set), **given}, priority="cmdline")
            self._options.arguments = arglist_to_dict(self._options.argument)
        except ValueError:
            raise UsageError("Invalid -s or -a value, use NAME=VALUE", print_help=False) from None

    def run(self, args: list[str], opts: argparse.Namespace) -> None:  # noqa: ARG002  # Scrapy's interface
        """Run the action and set the exit code."""
        console = import_module("scrapy_bloom.cli.console")
        self.exitcode = console.exit_code(lambda: self._module.run(self._options, self.settings))
