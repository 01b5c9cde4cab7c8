"""Models behind one port: providers over HTTP in two wire formats, and scripted ones that need no network."""

from chordage.orchestrator.gateways.models.catalog import ModelCatalog
from chordage.orchestrator.gateways.models.providers import ProviderConfig, TableProviders

__all__ = ["ModelCatalog", "ProviderConfig", "TableProviders"]
