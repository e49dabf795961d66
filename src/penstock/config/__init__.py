"""The server's configuration: which options there are, where their values come from, and how they are shown."""

from penstock.config.load import Given, Loaded, Source, load
from penstock.config.options import SECTIONS, Config, Option

__all__ = ["SECTIONS", "Config", "Given", "Loaded", "Option", "Source", "load"]
