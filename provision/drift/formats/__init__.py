"""Formats of a drift report for people and for CI: one file per format, each with `render(report)`."""

NAMES = ("text", "json", "junit", "sarif", "github", "markdown", "prometheus")
