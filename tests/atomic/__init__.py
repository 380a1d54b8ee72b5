"""Tests of the filter as atomic scripts."""
