"""Plain Python functions as tools: how they are declared, checked and carried out."""

from chordage.orchestrator.core.approvals import OnExpiry, ResumeMode
from chordage.orchestrator.gateways.tools.context import Context
from chordage.orchestrator.gateways.tools.declare import Tool, declared_on, tool
from chordage.orchestrator.gateways.tools.suspend import Suspend
from chordage.orchestrator.gateways.tools.toolbox import ToolBox

__all__ = ["Context", "OnExpiry", "ResumeMode", "Suspend", "Tool", "ToolBox", "declared_on", "tool"]
