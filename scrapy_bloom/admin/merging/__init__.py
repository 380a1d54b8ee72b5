"""Filters that become one."""
