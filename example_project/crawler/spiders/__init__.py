"""The spiders, numbered: each adds one idea to the previous one."""
