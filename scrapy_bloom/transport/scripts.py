"""The Lua scripts of this package, one file each."""

from importlib.resources import files


def load_script(package: str, *names: str) -> str:
    """Return the scripts of these names in the `lua` folder of a package, without comments and indentation.

    A script is sent with each call, and the server hashes all of its text.
    """
    folder = files(package) / "lua"
    lines = [line for name in names for line in (folder / f"{name}.lua").read_text(encoding="utf-8").splitlines()]
    return "\n".join(line for line in map(str.strip, lines) if line and not line.startswith("--"))
