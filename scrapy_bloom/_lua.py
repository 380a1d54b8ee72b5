"""The Lua scripts of this package, one file each."""

from importlib.resources import files


def load_script(package: str, *names: str) -> str:
    """Return the scripts of these names in the `lua` folder of a package, one after another, without comments.

    A script is sent whole with each call, so that its comments would be.
    """
    folder = files(package) / "lua"
    lines = [line for name in names for line in (folder / f"{name}.lua").read_text(encoding="utf-8").splitlines()]
    return "\n".join(line for line in lines if not line.lstrip().startswith("--"))
