"""The command itself: it finds the action, and turns what goes wrong into an exit code.

Scrapy loads this module whatever its command line asks for, so that it imports nothing that takes time.
"""

import argparse
import sys
from importlib import import_module
from typing import Any, ClassVar, NoReturn

from scrapy.commands import ScrapyCommand
from scrapy.exceptions import UsageError
from scrapy.utils.conf import arglist_to_dict

ACTIONS = {
    "plan": "how much memory a filter takes, before there is one",
    "info": "how full a filter is, and what its workers do",
    "doctor": "what would lose pages in a crawl, and what to do about it",
    "check": "if a request would be dropped as a repeat, and why",
    "import": "move the SET of scrapy-redis, or a file, into a filter",
    "export": "write a filter to a file",
    "restore": "make a filter from such a file",
    "clear": "delete a filter",
    "push": "queue requests that a worker left in a file",
    "requeue": "queue dead letters again",
}
# Modules whose name would be a keyword.
_MODULES = {"import": "import_"}

# Scrapy 2.13 makes a CrawlerProcess for every command.
_HAS_CRAWLER_PROCESS = not hasattr(ScrapyCommand, "requires_crawler_process")

_HELP = """\
actions:
{actions}

In a project an action takes a spider's name; elsewhere --key and --redis-url say where the filter is.
`scrapy bloom ACTION --help` tells the options of an action. -s NAME=VALUE may stand before and behind it.

examples:
  scrapy bloom plan --capacity 1e8 --error-rate 1e-6
  scrapy bloom doctor news
  scrapy bloom info news --json
  scrapy bloom info --key news:dupefilter --redis-url redis://localhost:6379
  scrapy bloom check news https://example.com/ 'https://example.com/?a=1'

exit codes:
  0  done, or the answer is yes
  1  the answer is no
  2  refused, or wrong options
  3  Redis is away
  141  the reader of its output went away before it had ended
"""


class _Parser(argparse.ArgumentParser):
    """A parser that repeats no password of a URL which stands in a wrong place."""

    def error(self, message: str) -> NoReturn:
        super().error(import_module("scrapy_bloom.transport.failures").hide_credentials(message))


class Command(ScrapyCommand):
    """The command that Scrapy's entry point group `scrapy.commands` gets."""

    requires_crawler_process = False
    default_settings: ClassVar[dict[str, Any]] = {"LOG_ENABLED": False}

    def syntax(self) -> str:
        """Return what follows the command's name."""
        return "[-s NAME=VALUE] ACTION [options]"

    def short_desc(self) -> str:
        """Return the line in Scrapy's list of commands."""
        return "Look into, move and mend the Bloom filter of a crawl"

    def add_options(self, parser: argparse.ArgumentParser) -> None:
        """Let everything behind the name of the action be its own."""
        super().add_options(parser)
        listed = "\n".join(f"  {name:<8} {purpose}" for name, purpose in ACTIONS.items())
        parser.formatter_class = argparse.RawDescriptionHelpFormatter
        parser.epilog = _HELP.format(actions=listed)
        parser.add_argument("action", nargs="?", metavar="ACTION", help="what to do; see below")
        parser.add_argument("rest", metavar="options", nargs=argparse.REMAINDER, help="those of the action")

    def process_options(self, args: list[str], opts: argparse.Namespace) -> None:
        """Read the options; where Scrapy would make a CrawlerProcess before `run`, carry out the action at once.

        That fails with a traceback and the exit code 1 where an add-on or a spider of the project cannot be read.
        """
        self.read_options(args, opts)
        if _HAS_CRAWLER_PROCESS and not opts.profile:
            self.run(args, opts)
            sys.exit(self.exitcode)

    def read_options(self, args: list[str], opts: argparse.Namespace) -> None:
        """Read the options of the action, and the settings among them."""
        super().process_options(args, opts)
        assert self.settings is not None  # noqa: S101  # Scrapy has set them
        if args:
            raise UsageError(f"{args[0]}: there is no such option", print_help=False)
        if opts.action is None:
            raise UsageError(f"give an ACTION: {', '.join(ACTIONS)}; --help tells of each", print_help=False)
        if opts.action not in ACTIONS:
            raise UsageError(f"{opts.action!r} is no action; there are {', '.join(ACTIONS)}", print_help=False)
        self._module = import_module(f"scrapy_bloom.cli.{_MODULES.get(opts.action, opts.action)}")
        self._options = self._parser(opts.action).parse_args(opts.rest)
        try:
            self.settings.setdict(arglist_to_dict(self._options.set), priority="cmdline")
        except ValueError:
            raise UsageError("Invalid -s value, use -s NAME=VALUE", print_help=False) from None

    def run(self, args: list[str], opts: argparse.Namespace) -> None:  # noqa: ARG002  # what Scrapy passes
        """Carry out the action."""
        ending = import_module("scrapy_bloom.cli._exit_codes")
        self.exitcode = ending.exit_code(lambda: self._module.run(self._options, self.settings))

    def _parser(self, action: str) -> argparse.ArgumentParser:
        parser = _Parser(
            prog=f"scrapy bloom {action}",
            description=self._module.__doc__,
            epilog=getattr(self._module, "EXAMPLES", None),
            formatter_class=argparse.RawDescriptionHelpFormatter,
            allow_abbrev=False,
        )
        self._module.add_options(parser)
        parser.add_argument(
            "-s", "--set", action="append", default=[], metavar="NAME=VALUE", help="set a setting; may be repeated"
        )
        return parser
